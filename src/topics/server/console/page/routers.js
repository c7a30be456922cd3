// Routers: who copies into whom, as a graph and as a table; how far behind, and why one stands still.
import { html, useState } from "./html.js";
import { call, can, get, path, query } from "./api.js";
import { attempt, toTopic, usePoll } from "./state.js";
import { number, short } from "./format.js";
import { Badge, Card, Dialog, Empty, Table, Trouble } from "./parts.js";
import { FilterTest, filterOf, remedy } from "./routes.js";

const DRAWN_MAX = 200;
const [WIDE, HIGH, STEP_X, STEP_Y] = [190, 34, 340, 58];

async function all(options) {
  const found = [];
  let cursor = "";
  do {
    const page = await get(`routers${query({ detail: true, page_size: 1000, cursor })}`, options);
    found.push(...page.routers);
    cursor = page.next_cursor || "";
  } while (cursor && found.length < 5000);
  return found;
}

// Topics in columns: each right of all that it gets from; in a cycle, where it was first met.
function layout(routers) {
  const names = [...new Set(routers.flatMap(({ source, dest }) => [source, dest]))];
  const depth = new Map(names.map((name) => [name, 0]));
  for (let turn = 0; turn < Math.min(names.length, 12); turn += 1) {
    for (const { source, dest } of routers) {
      if (depth.get(dest) <= depth.get(source) && depth.get(source) < 11) depth.set(dest, depth.get(source) + 1);
    }
  }
  const columns = [];
  names.sort().forEach((name) => (columns[depth.get(name)] ||= []).push(name));
  const full = columns.filter(Boolean);
  const rows = Math.max(...full.map((column) => column.length));
  const places = new Map();
  full.forEach((column, x) => column.forEach((name, y) => places.set(name, { x: 12 + x * STEP_X, y: 12 + (y + (rows - column.length) / 2) * STEP_Y })));
  return { places, width: full.length * STEP_X - STEP_X + WIDE + 24, height: rows * STEP_Y + 4 };
}

// Where on a curve its label is: nearer to the end, where fewer curves cross.
const AT = 0.64;
const along = (a, b, c, d) => (1 - AT) ** 3 * a + 3 * (1 - AT) ** 2 * AT * b + 3 * (1 - AT) * AT ** 2 * c + AT ** 3 * d;

const cut = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

function Graph({ routers }) {
  const { places, width, height } = layout(routers);
  return html`<div class="graph" tabindex="0" role="region" aria-label="Graph of routers; the table below says the same"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    ${routers.map((one) => {
      const [a, b] = [places.get(one.source), places.get(one.dest)];
      const [x1, y1, x2, y2] = [a.x + WIDE, a.y + HIGH / 2, b.x, b.y + HIGH / 2];
      const bend = Math.max(40, Math.abs(x2 - x1) / 2);
      const isBlocked = one.state === "blocked";
      return html`<g key=${one.router} class=${`edge ${isBlocked ? "blocked" : ""}`}><title>${one.router}${isBlocked ? `: ${one.blocked_by}` : ""}</title>
        <path d=${`M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} />
        <text x=${along(x1, x1 + bend, x2 - bend, x2)} y=${along(y1, y1, y2, y2) - 6}>${isBlocked ? "blocked" : one.lag === undefined ? "" : one.lag ? `${short(one.lag)} behind` : "caught up"}</text></g>`;
    })}
    ${[...places].map(([name, { x, y }]) => html`<a key=${name} href=${toTopic(name)}><title>${name}</title><rect x=${x} y=${y} width=${WIDE} height=${HIGH} rx="8" /><text x=${x + 12} y=${y + 22}>${cut(name)}</text></a>`)}
  </svg></div>`;
}

function NewRouter({ onClose, onDone }) {
  const [fields, setFields] = useState({ source: "", dest: "", filter: "" });
  const set = (name) => (event) => setFields({ ...fields, [name]: event.target.value });
  const submit = async (event) => {
    event.preventDefault();
    const source = fields.source.trim();
    const dest = fields.dest.trim();
    const filter = filterOf(fields.filter);
    const body = { source, dest, ...(filter ? { filter } : {}) };
    if (await attempt(() => call("PUT", `routers/${path(`${source}->${dest}`)}`, body), `${source} is copied into ${dest}`)) onDone();
  };
  return html`<${Dialog} title="New router" onClose=${onClose}><form onSubmit=${submit}><h2>New router</h2>
    <label>From topic<input value=${fields.source} onInput=${set("source")} autofocus autocomplete="off" /></label><label>Into topic<input value=${fields.dest} onInput=${set("dest")} autocomplete="off" /></label>
    <label>Only this tag, or a* for a prefix; empty = all<input name="filter" value=${fields.filter} onInput=${set("filter")} autocomplete="off" /></label>
    <${FilterTest} source=${fields.source.trim()} filter=${filterOf(fields.filter)} />
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Cancel</button><button class="button main" disabled=${!fields.source.trim() || !fields.dest.trim()}>Create</button></div></form><//>`;
}

// What a filter does to the last records of the source. Nothing is changed by it.
function Trial({ router, onClose }) {
  const [text, setText] = useState(router.filter ? router.filter[2] : "");
  return html`<${Dialog} title="Test filter" onClose=${onClose}><div class="stack"><h2>Test the filter of ${router.router}</h2>
    <label>Only this tag, or a* for a prefix; empty = all<input name="filter" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" autofocus /></label>
    <${FilterTest} source=${router.source} filter=${filterOf(text)} />
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Close</button></div></div><//>`;
}

export function Routers() {
  const { data, error, reload } = usePoll(all, 2000);
  const [isNew, setNew] = useState(false);
  const [gone, setGone] = useState(null);
  const [testing, setTesting] = useState(null);
  const drop = async () => {
    await attempt(() => call("DELETE", `routers/${path(gone)}`), `The router ${gone} is gone`);
    setGone(null);
    reload();
  };
  return html`<div class="head"><div><h1>Routers</h1><p>Each copies the records of one topic into another.</p></div>
    ${can("admin") && html`<button class="button main" type="button" onClick=${() => setNew(true)}>New router</button>`}</div>
  <div class="stack"><${Trouble} error=${error} />
    ${data?.length === 0 && html`<div class="card"><${Empty} title="There are no routers">A router copies every record of one topic into another, in order, and says when it cannot.<//></div>`}
    ${data?.length > 0 && html`
      ${data.filter((one) => one.state === "blocked").map((one) => html`<p class="lost-note" key=${one.router}><span><strong>${one.router} is blocked:</strong> ${one.blocked_by}. ${remedy(one)}</span></p>`)}
      ${data.length <= DRAWN_MAX && html`<${Card} title="Who copies into whom"><${Graph} routers=${data} /><//>`}
      <${Card} title="All routers"><${Table} name="routers" rows=${data} keyOf=${(one) => one.router} columns=${[
        ["Router", (one) => html`<strong class="wrap">${one.router}</strong>`],
        ["From", (one) => html`<a href=${toTopic(one.source)}>${one.source}</a>`], ["Into", (one) => html`<a href=${toTopic(one.dest)}>${one.dest}</a>`],
        ["Filter", (one) => (one.filter ? html`<code class="wrap">${one.filter.slice(1).join(" ")}</code>` : html`<span class="faint">all</span>`)],
        ["Guarantee", (one) => html`<span class="whole">${one.guarantee.replaceAll("_", " ")}</span>`], ["Forwarded", (one) => number(one.forwarded_total), true], ["Behind", (one) => number(one.lag), true],
        ["State", (one) => (one.state ? html`<${Badge} kind=${one.state === "blocked" ? "lost" : "good"}>${one.state}<//>` : "–")],
        ["", (one) => html`<span class="row tight"><button class="button small" type="button" onClick=${() => setTesting(one)}>Test filter</button>${can("delete") && html`<button class="button small" type="button" onClick=${() => setGone(one.router)}>Delete</button>`}</span>`]]} /><//>`}
  </div>
  ${isNew && html`<${NewRouter} onClose=${() => setNew(false)} onDone=${() => { setNew(false); reload(); }} />`}
  ${testing && html`<${Trial} router=${testing} onClose=${() => setTesting(null)} />`}
  ${gone && html`<${Dialog} title="Delete router" onClose=${() => setGone(null)}><div class="stack"><h2>Delete ${gone}</h2><p>What it has copied stays. Nothing more is copied.</p>
    <div class="actions"><button class="button" type="button" onClick=${() => setGone(null)}>Cancel</button><button class="button danger" type="button" onClick=${drop}>Delete router</button></div></div><//>`}`;
}
