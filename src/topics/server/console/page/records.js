// The records of a topic: a live tail with a pause, jumps to a seq, a time or a tag, and an inspector.
import { html, useEffect, useRef, useState } from "./html.js";
import { ask, call, follow, path, query } from "./api.js";
import { keep, place, toTopic } from "./state.js";
import { clock, isExact, line, number, parse, plural, range, reason } from "./format.js";
import { Badge, Card, Copy, Download, Icon, Tabs, When } from "./parts.js";

const KEPT = 200; // rows in the page
const BACK = 100; // records shown before the tail
const FLUSH_MS = 200;
const FLOOD = 100; // rows that wait: the page is then drawn less often …
const FLOOD_MS = 600; // … since nobody can read that fast

// What a read or a frame says, as rows: records and, in their place, what was lost.
const rowsOf = (records, gap) => [
  ...(gap ? [{ gap: true, from: gap.gap_from, to: gap.gap_to, reason: gap.reason }] : []),
  ...records,
];
const keyOf = (row) => (row.gap ? `gap${row.from}` : row.$seq);

function useTail(name, head, isPaused) {
  const [view, setView] = useState({ rows: [], state: "opening", why: "" });
  const held = useRef([]);
  const paused = useRef(isPaused);
  paused.current = isPaused;
  useEffect(() => {
    let known = [];
    let drawn = 0;
    const from = Math.max(0, head - BACK);
    const end = follow(`topics/${path(name)}/events${query({ from_seq: from, include_tags: true, limit: 1000 })}`, {
      onEvent: ({ kind, data }) => {
        if (kind === "record") held.current.push(...rowsOf(data.records));
        if (kind === "tombstone") held.current.push(...rowsOf([], data));
        if (kind === "topic-deleted") held.current.push({ gap: true, from: data.head_seq, to: data.head_seq, reason: "the topic was deleted" });
        if (held.current.length > KEPT) held.current = held.current.slice(-KEPT);
      },
      onState: (state, why) => setView((last) => ({ ...last, state, why })),
    });
    const timer = setInterval(() => {
      if (!held.current.length || paused.current || document.hidden) return;
      if (held.current.length > FLOOD && performance.now() - drawn < FLOOD_MS) return;
      drawn = performance.now();
      known = [...known, ...held.current].slice(-KEPT);
      held.current = [];
      setView((last) => ({ ...last, rows: [...known].reverse() }));
    }, FLUSH_MS);
    return () => {
      end();
      clearInterval(timer);
      held.current = [];
    };
  }, [name]);
  return view;
}

// A page of records from somewhere: {at: {from_seq} or {from_ts}, filter}.
function usePage(name, jump) {
  const [page, setPage] = useState(null);
  useEffect(() => {
    if (!jump) {
      setPage(null);
      return undefined;
    }
    const abort = new AbortController();
    const body = { ...jump, limit: 100, include_tags: true };
    call("POST", `topics/${path(name)}/diff`, body, { signal: abort.signal, isExact: true })
      .then((answer) => setPage({ rows: rowsOf(answer.records, answer.tombstone), next: answer.caught_up ? null : answer.next_from_seq, error: "" }))
      .catch((error) => error.name !== "AbortError" && setPage({ rows: [], next: null, error: error.message }));
    return () => abort.abort();
  }, [name, JSON.stringify(jump)]);
  return page;
}

function Jump({ jump, setJump }) {
  const [kind, setKind] = useState("seq");
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const value = text.trim();
    if (!value) setJump(null);
    else if (kind === "seq" && /^\d+$/.test(value)) setJump({ from_seq: Math.max(0, Number(value) - 1) });
    else if (kind === "time" && !Number.isNaN(Date.parse(value))) setJump({ from_ts: Date.parse(value) });
    else if (kind === "tag") setJump({ from_seq: 0, filter: value.endsWith("*") ? ["tag", "Glob", value] : value });
  };
  const hints = { seq: "a seq", time: "2026-11-17T12:00Z", tag: "a tag, or a* for a prefix" };
  return html`<form class="jump" onSubmit=${submit}>
    <select aria-label="Jump to" value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="seq">Seq</option><option value="time">Time</option><option value="tag">Tag</option></select>
    <input aria-label="Where to" placeholder=${hints[kind]} value=${text} onInput=${(event) => setText(event.target.value)} />
    <button class="button small">Jump</button>${jump && html`<button class="button small" type="button" onClick=${() => { setText(""); setJump(null); }}>Back to the tail</button>`}
  </form>`;
}

const Row = ({ row, isOpen, onOpen }) =>
  row.gap
    ? html`<tr class="gap-row"><td colspan="4"><${Icon} name="warn" /> ${range(row.from, row.to)}: ${plural(row.to - row.from + 1, "record")} lost, ${reason(row.reason)}</td></tr>`
    : html`<tr class=${isOpen ? "open" : ""}><td class="number"><button class="seq" type="button" aria-expanded=${String(isOpen)} onClick=${() => onOpen(row.$seq)}>${number(row.$seq)}</button></td>
        <td class="when"><${When} ms=${row.$ts} /></td><td class="tags">${row.$tag !== undefined && html`<${Badge}>${row.$tag}<//>`}${row.$node !== undefined && html` <span class="faint">${row.$node}</span>`}</td>
        <td class="data"><code>${line(row.data, 300)}</code></td></tr>`;

export function Records({ name, state }) {
  const [isPaused, setPaused] = useState(false);
  const [jump, setJump] = useState(null);
  const tail = useTail(name, state.head_seq, isPaused || jump !== null);
  const page = usePage(name, jump);
  const rows = jump ? page?.rows || [] : tail.rows;
  const open = place.value.fields.seq;
  const show = (seq) => keep({ seq: String(seq) === open ? "" : String(seq) });
  const walk = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.className !== "seq") return;
    event.preventDefault();
    const buttons = [...event.currentTarget.querySelectorAll(".seq")];
    buttons[buttons.indexOf(event.target) + step]?.focus();
  };
  const status = jump ? page?.error || (page ? `${plural(rows.length, "row")}` : "Loading") : { open: isPaused ? "Paused" : "Live", opening: "Opening", waiting: "Connecting again", ended: tail.why }[tail.state];
  return html`<div class=${`records ${open ? "with-inspector" : ""}`}>
    <${Card} title="Records" aside=${html`<span role="status" class=${`live-state ${jump ? "" : tail.state} ${isPaused ? "paused" : ""}`}>${status}</span><${Jump} jump=${jump} setJump=${setJump} />
      ${!jump && html`<button class="button small" type="button" aria-pressed=${String(isPaused)} onClick=${() => setPaused(!isPaused)}><${Icon} name=${isPaused ? "play" : "pause"} /> ${isPaused ? "Go on" : "Pause"}</button>`}
      <${Download} name=${`records-${name}`} rows=${rows.filter((row) => !row.gap)} />`}>
      <div class="table" role="region" aria-label="Records" tabindex="0" onKeyDown=${walk}><table class="record-table">
        <thead><tr><th scope="col" class="number">Seq</th><th scope="col">When</th><th scope="col">Tag, node</th><th scope="col">Data</th></tr></thead>
        <tbody>${rows.map((row) => html`<${Row} key=${keyOf(row)} row=${row} isOpen=${!row.gap && String(row.$seq) === open} onOpen=${show} />`)}</tbody></table>
        ${!rows.length && html`<p class="faint pad">${state.count ? "Nothing to show yet." : "No live records."}</p>`}</div>
      ${jump && page?.next && html`<div class="under"><button class="button small" type="button" onClick=${() => setJump({ ...jump, from_ts: undefined, from_seq: page.next })}>Further <${Icon} name="right" /></button></div>`}
    <//>
    ${open && html`<${Inspector} key=${open} name=${name} seq=${open} onClose=${() => keep({ seq: "" })} />`}
  </div>`;
}

const GONE = { deleted: "Somebody asked to delete it.", lost: "It is lost: a cap, an age limit or a crash took it.", not_written: "It is not written yet." };

function Inspector({ name, seq, onClose }) {
  const [found, setFound] = useState(null);
  const [tab, setTab] = useState("tree");
  useEffect(() => {
    const abort = new AbortController();
    ask("GET", `topics/${path(name)}/records/${path(seq)}`, undefined, { signal: abort.signal })
      .then((text) => {
        const raw = text.slice(text.indexOf('"record":') + 9, text.lastIndexOf(',"performance":'));
        setFound({ raw, record: parse(raw) });
      })
      .catch((error) => error.name !== "AbortError" && setFound({ gone: GONE[error.detail?.reason] || error.message }));
    return () => abort.abort();
  }, [name, seq]);
  const record = found?.record;
  const step = (by) => keep({ seq: String(Math.max(1, Number(seq) + by)) });
  return html`<aside class="card inspector" aria-label=${`Record ${seq}`}>
    <header><h2>Record ${number(Number(seq))}</h2><div class="aside">
      <button class="button small" type="button" aria-label="Earlier record" onClick=${() => step(-1)}><${Icon} name="left" /></button>
      <button class="button small" type="button" aria-label="Later record" onClick=${() => step(1)}><${Icon} name="right" /></button>
      <button class="button small" type="button" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></div></header>
    <div class="body">
      ${found?.gone && html`<p class="trouble">${found.gone}</p>`}
      ${record && html`<dl class="facts"><dt>When</dt><dd>${clock(record.$ts)}</dd>
        ${record.$tag !== undefined && html`<dt>Tag</dt><dd class="wrap">${record.$tag}</dd>`}${record.$node !== undefined && html`<dt>Node</dt><dd class="wrap">${record.$node}</dd>`}
        <dt>Size</dt><dd>${plural(new TextEncoder().encode(found.raw).length, "byte")} of JSON</dd></dl>
        <${Tabs} label="As" tabs=${[["tree", "Tree"], ["raw", "Raw"]]} current=${tab} onSelect=${setTab} />
        ${tab === "tree" ? html`<div class="tree"><${Tree} name="data" value=${record.data} depth=${0} />${record.meta !== undefined && html`<${Tree} name="meta" value=${record.meta} depth=${0} />`}</div>` : html`<pre class="raw" tabindex="0">${found.raw}</pre>`}
        <div class="row actions"><${Copy} text=${found.raw} label="Copy JSON" /><${Copy} text=${new URL(toTopic(name, { tab: "records", seq }), location.href).href} label="Copy link" /></div>`}
    </div></aside>`;
}

const FIRST = 100;
// A value as a tree. All of it is text nodes, whatever it holds.
function Tree({ name, value, depth }) {
  const [shown, setShown] = useState(FIRST);
  const label = html`<span class="name">${name}</span>`;
  if (value === null || typeof value !== "object" || isExact(value)) {
    const kind = isExact(value) ? "number" : value === null ? "null" : typeof value;
    return html`<div class="leaf">${label} <span class=${`value ${kind}`}>${JSON.stringify(value)}</span></div>`;
  }
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return html`<div class="leaf">${label} <span class="value null">${Array.isArray(value) ? "[]" : "{}"}</span></div>`;
  return html`<${Branch} isOpen=${depth < 3} head=${html`${label} <span class="faint">${size}</span>`} body=${() => html`
    ${entries.slice(0, shown).map(([key, one]) => html`<${Tree} key=${key} name=${key} value=${one} depth=${depth + 1} />`)}
    ${entries.length > shown && html`<button class="button small" type="button" onClick=${() => setShown(shown + 10 * FIRST)}>${number(entries.length - shown)} more</button>`}`} />`;
}

function Branch({ isOpen, head, body }) {
  const [open, setOpen] = useState(isOpen);
  return html`<details open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>${head}</summary>${open && html`<div class="branch">${body()}</div>`}</details>`;
}
