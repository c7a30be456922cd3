// Small pieces that the pages are made of.
import { html, useEffect, useRef, useState } from "./html.js";
import { ago, bytes, clock, number, plural } from "./format.js";
import { call } from "./api.js";
import { attempt, now, say } from "./state.js";

const PATHS = {
  overview: "M3 12l3-7 4 12 4-9 3 4h4",
  topics: "M4 6h16M4 12h11M4 18h14",
  routers: "M4 6h4l8 12h4M4 18h4l2-3M16 6h4M14 9l2-3",
  live: "M5 12a7 7 0 0 1 14 0M8 12a4 4 0 0 1 8 0M12 12v7",
  server: "M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 0 0 0-14zM20 20l-4-4",
  copy: "M9 9h10v10H9zM5 15V5h10",
  close: "M6 6l12 12M18 6L6 18",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M20 14a8 8 0 1 1-10-10a6 6 0 0 0 10 10z",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  key: "M14 10a4 4 0 1 0-3 4l2-2h2v-2h2l3-3V5h-2z",
  down: "M12 4v11M7 11l5 5l5-5M5 20h14",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7l-12 7z",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  check: "M5 12l5 5L19 7",
  code: "M8 7l-5 5l5 5M16 7l5 5l-5 5",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  left: "M15 5l-7 7l7 7",
  right: "M9 5l7 7l-7 7",
};
export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

// A point in time: relative, the absolute one on hover.
export const When = ({ ms }) =>
  ms === null || ms === undefined
    ? html`<span class="faint">never</span>`
    : html`<time dateTime=${new Date(ms).toISOString()} title=${clock(ms)}>${ago(ms, now.value)}</time>`;

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button class="button small" type="button" onClick=${copy}>
    <${Icon} name=${isDone ? "check" : "copy"} /> <span aria-live="polite">${isDone ? "Copied" : label}</span>
  </button>`;
}

export const Command = ({ text }) =>
  html`<div class="command"><pre tabindex="0"><code>${text}</code></pre><${Copy} text=${text} /></div>`;

export function download(name, rows) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(rows, null, 2)], { type: "application/json" }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: `${name}.json` });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
// `rows`: a list, or a function that gives one when it is asked for.
export const Download = ({ name, rows }) =>
  html`<button class="button small" type="button" disabled=${rows.length === 0 && typeof rows !== "function"}
    onClick=${async () => { const all = typeof rows === "function" ? await attempt(rows) : rows; if (all) download(name, all); }}
    title="Download this table as JSON"><${Icon} name="down" /> JSON</button>`;

export const Card = ({ title, aside = null, className = "", children }) =>
  html`<section class=${`card ${className}`}>
    ${title && html`<header><h2>${title}</h2><div class="aside">${aside}</div></header>`}${children}
  </section>`;

export const Figure = ({ label, value, note = "", kind = "" }) =>
  html`<div class=${`figure ${kind}`}><dt>${label}</dt><dd>${value}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;

export const Empty = ({ title, children }) =>
  html`<div class="empty"><strong>${title}</strong><p>${children}</p></div>`;

export const Trouble = ({ error }) =>
  error && error.name !== "AbortError" && error.status !== 401
    ? html`<p class="trouble" role="alert"><${Icon} name="warn" /> ${error.message}</p>`
    : null;

// A table, and the same as JSON. Columns: [title, row => cell, is it a number].
export const Table = ({ name, columns, rows, keyOf, empty = "Nothing here.", data = rows }) => html`
  <div class="table" tabindex="0" role="region" aria-label=${name}>
    <table>
      <thead><tr>${columns.map(([title, , isNumber]) => html`<th scope="col" class=${isNumber ? "number" : ""}>${title || html`<span class="hidden">Acts</span>`}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr key=${keyOf(row)}>
          ${columns.map(([title, cell, isNumber]) => html`<td class=${isNumber ? "number" : title ? "" : "acts"}>${cell(row)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
    ${rows.length === 0 && html`<p class="faint pad">${empty}</p>`}
  </div>
  <div class="under"><${Download} name=${name} rows=${data} /></div>`;

export const Tabs = ({ tabs, current, onSelect, label }) => {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([id]) => id === current);
    const [next] = tabs[(at + step + tabs.length) % tabs.length];
    onSelect(next);
    requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map(([id, title]) => html`<button type="button" role="tab" id=${`tab-${id}`} aria-selected=${String(id === current)}
      tabindex=${id === current ? 0 : -1} onClick=${() => onSelect(id)}>${title}</button>`)}
  </div>`;
};

export function Dialog({ title, onClose, children, className = "" }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (event) => event.target === box.current && onClose();
  return html`<dialog ref=${box} class=${className} aria-label=${title} onCancel=${onClose} onClose=${onClose} onClick=${outside}>
    <div class="sheet">${children}</div>
  </dialog>`;
}

// Asks for a name before something is destroyed, and says how much goes.
export function Destroy({ title, name, count, size, more = "", verb, act, onDone, onClose }) {
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (typed !== name || isBusy) return;
    setBusy(true);
    const result = await attempt(act, `${verb}: ${name}`);
    setBusy(false);
    if (result !== null) onDone(result);
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      <h2>${title}</h2>
      <p><strong>${plural(count, "record")}</strong>${size !== undefined && html`, <strong>${bytes(size)}</strong>,`} will be gone for good. ${more}</p>
      <label>Type <code>${name}</code> to go on
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" autofocus /></label>
      <div class="actions">
        <button class="button" type="button" onClick=${onClose}>Cancel</button>
        <button class="button danger" disabled=${typed !== name || isBusy}>${verb}</button>
      </div>
    </form>
  <//>`;
}

export const act = (method, target, body, done) => attempt(() => call(method, target, body), done);
export const count = (value) => html`<span title=${number(value)}>${number(value)}</span>`;
export { say };
