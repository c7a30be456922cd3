// The next jobs of a queue, looked at without taking them; and jobs that are moved to another topic.
import { html, useState } from "./html.js";
import { call, can, get, path } from "./api.js";
import { attempt, toTopic, usePoll } from "./state.js";
import { line, number, plural } from "./format.js";
import { Badge, Card, Dialog, Empty, Table, When } from "./parts.js";

const SHOWN = 20;

// The first jobs that are live, with who holds them.
async function peek(name, options) {
  const target = `topics/${path(name)}`;
  const [{ records }, { leases }] = await Promise.all([
    call("POST", `${target}/diff`, { from_seq: 0, limit: SHOWN, include_tags: true }, { ...options, isExact: true }),
    get(`${target}/leases?page_size=200`, options),
  ]);
  const held = new Map(leases.map((one) => [one.$seq, one]));
  return records.map((one) => ({ ...one, lease: held.get(Number(one.$seq)) }));
}

export function Next({ name, state, reload }) {
  const { data, reload: again } = usePoll((options) => peek(name, options), 2000, [name]);
  const [moving, setMoving] = useState(null);
  const may = can("write", "delete");
  const free = (data || []).filter((one) => !one.lease);
  const { ready, delayed } = state.queue;
  return html`<${Card} title="Next jobs" aside=${html`<span>The first ${number(SHOWN)}, looked at and not taken.</span>
      ${may && free.length > 0 && html`<button class="button small" type="button" onClick=${() => setMoving(free.map((one) => one.$seq))}>Move all shown</button>`}`}>
    ${data && (data.length === 0
      ? html`<${Empty} title="The queue is empty">Jobs show up here as soon as they are written.<//>`
      : html`<${Table} name=${`jobs-${name}`} rows=${data} keyOf=${(one) => one.$seq} columns=${[
          ["Job", (one) => html`<a href=${toTopic(name, { tab: "records", seq: one.$seq })}>${number(one.$seq)}</a>`, true],
          ["Written", (one) => html`<${When} ms=${one.$ts} />`],
          ["State", (one) => (one.lease ? html`<${Badge} kind="good">held by ${one.lease.node.slice(0, 40)}<//>` : html`<${Badge}>${delayed ? "waits" : "ready"}<//>`)],
          ["Tag", (one) => (one.$tag === undefined ? html`<span class="faint">none</span>` : html`<span class="wrap">${one.$tag}</span>`)],
          ["Data", (one) => html`<code class="cut">${line(one.data, 120)}</code>`],
          ["", (one) => may && html`<button class="button small" type="button" disabled=${Boolean(one.lease)} title=${one.lease ? "A worker holds it; take it back first" : ""} onClick=${() => setMoving([one.$seq])}>Move</button>`],
        ]} />`)}
    ${ready > SHOWN && html`<p class="faint pad">${number(ready)} are ready in all.</p>`}
    ${moving && html`<${Move} name=${name} seqs=${moving} onClose=${() => setMoving(null)} onDone=${() => { setMoving(null); reload(); again(); }} />`}
  <//>`;
}

function Move({ name, seqs, onClose, onDone }) {
  const [dest, setDest] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    const told = await attempt(() => call("POST", `topics/${path(name)}/move`, { seqs: seqs.map(Number), dest: dest.trim() }));
    setBusy(false);
    if (!told) return;
    const rest = told.skipped.length ? `; ${number(told.skipped.length)} stayed: held, gone, or without room there` : "";
    await attempt(async () => told, `${plural(told.moved.length, "job")} moved to ${told.dest}${rest}`);
    onDone();
  };
  return html`<${Dialog} title="Move jobs" onClose=${onClose}><form onSubmit=${submit}><h2>Move ${seqs.length === 1 ? `job ${number(Number(seqs[0]))}` : plural(seqs.length, "job")}</h2>
    <p class="faint">They leave this queue and are appended to another topic as they are. A job that a worker has taken meanwhile stays.</p>
    <label>Into topic<input name="dest" value=${dest} onInput=${(event) => setDest(event.target.value)} autocomplete="off" autofocus /></label>
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Cancel</button><button class="button main" disabled=${!dest.trim() || dest.trim() === name || isBusy}>Move</button></div></form><//>`;
}
