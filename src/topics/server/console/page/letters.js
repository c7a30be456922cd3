// Dead letters of a queue, in groups; and the way back, at once or at a rate.
import { html, signal, useState } from "./html.js";
import { call, can, get, path, query } from "./api.js";
import { attempt, say, toTopic, usePoll } from "./state.js";
import { bytes, line, number, plural } from "./format.js";
import { Card, Dialog, Empty, Icon, Table, When } from "./parts.js";

const LOOKED_AT = 500; // letters that are put into groups
const GROUPS = [["tag", "Tag", (one) => one.$tag ?? ""], ["deliveries", "Deliveries", (one) => String(one.meta.$dead_letter_deliveries)], ["shape", "Fields of the data", (one) => shape(one.data)]];

// What data looks like: the names of its fields, or its type. Failures often share it.
const shape = (data) => (data === null ? "null" : Array.isArray(data) ? "a list" : typeof data === "object" ? Object.keys(data).sort().slice(0, 12).join(", ") || "{}" : typeof data);

async function letters(letter, name, options) {
  const target = `topics/${path(letter)}`;
  const { topics } = await get(`topics${query({ prefix: letter, page_size: 1 })}`, options);
  if (topics[0]?.topic !== letter) return { count: 0, found: [] }; // the first letter makes it
  const state = await get(`${target}?touch=false`, options);
  const { records } = await call("POST", `${target}/diff`, { from_seq: Math.max(0, state.head_seq - LOOKED_AT), limit: LOOKED_AT, include_tags: true }, options);
  return { count: state.count, found: records.filter((one) => one.meta?.$dead_letter_from === name) };
}

function grouped(found, keyOf) {
  const groups = new Map();
  for (const one of found) {
    const key = keyOf(one);
    const group = groups.get(key) || { key, count: 0, newest: 0, deliveries: 0, seq: 0, sample: null };
    group.count += 1;
    group.newest = Math.max(group.newest, one.$ts);
    group.seq = one.$seq;
    group.sample = one.data;
    group.deliveries = Math.max(group.deliveries, Number(one.meta.$dead_letter_deliveries) || 0);
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.count - a.count);
}

// --- redrives that take their time: this tab asks for so many per second, and goes on while it is open

export const redriving = signal({}); // by queue: {done, remaining, rate, isOver}
const note = (name, fields) => {
  redriving.value = { ...redriving.value, [name]: fields && { ...redriving.value[name], ...fields } };
};

async function redriveSlowly(name, body, rate, remaining) {
  note(name, { done: 0, remaining, rate, isOver: false });
  for (;;) {
    const began = performance.now();
    const told = await attempt(() => call("POST", `topics/${path(name)}/redrive`, { ...body, max: rate }));
    const state = redriving.value[name];
    if (!state) return;
    if (told) note(name, { done: state.done + told.redriven, remaining: told.remaining });
    if (!told || told.redriven === 0 || told.remaining === 0 || state.isOver) break;
    await new Promise((done) => setTimeout(done, Math.max(0, 1000 - (performance.now() - began))));
    if (redriving.value[name]?.isOver) break;
  }
  const { done = 0 } = redriving.value[name] || {};
  note(name, undefined);
  say(`${plural(done, "job")} ready again`);
}

function Progress({ name }) {
  const state = redriving.value[name];
  if (!state) return null;
  const part = state.done + state.remaining ? state.done / (state.done + state.remaining) : 0;
  return html`<p class="strip progress" role="status"><${Icon} name="play" /> <span>Redriving ${number(state.rate)} per second: ${number(state.done)} done, ${number(state.remaining)} to go. It goes on while this tab is open.</span>
    <span class="meter" aria-hidden="true"><i style=${{ width: `${part * 100}%` }}></i></span><button class="button small" type="button" disabled=${state.isOver} onClick=${() => note(name, { isOver: true })}>Stop</button></p>`;
}

export function Dead({ name, letter, reload }) {
  const { data, reload: again } = usePoll((options) => letters(letter, name, options), 5000, [letter, name]);
  const [by, setBy] = useState("tag");
  const [trial, setTrial] = useState(null);
  const target = `topics/${path(name)}/redrive`;
  const ask = async (tag) => {
    const body = tag ? { match: tag } : {};
    const answer = await attempt(() => call("POST", target, { ...body, dry_run: true }));
    if (answer) setTrial({ body, answer });
  };
  const [, title, keyOf] = GROUPS.find(([id]) => id === by);
  const groups = data ? grouped(data.found, keyOf) : [];
  const may = can("write", "delete");
  return html`<${Card} title="Dead letters" aside=${html`<a class="wrap" href=${toTopic(letter, { tab: "records" })}>${letter}</a>
      ${groups.length > 0 && html`<select aria-label="Group by" class="slim" value=${by} onChange=${(event) => setBy(event.target.value)}>${GROUPS.map(([id, text]) => html`<option value=${id}>By ${text.toLowerCase()}</option>`)}</select>`}
      ${may && html`<button class="button small" type="button" disabled=${!data?.count || Boolean(redriving.value[name])} onClick=${() => ask("")}>Redrive all</button>`}`}>
    <${Progress} name=${name} />
    ${groups.length
      ? html`<${Table} name=${`dead-${name}`} rows=${groups} keyOf=${(one) => one.key} columns=${[
          [title, (one) => (one.key ? html`<span class="wrap">${one.key}</span>` : html`<span class="faint">none</span>`)], ["Letters", (one) => number(one.count), true], ["Deliveries", (one) => number(one.deliveries), true],
          ["Last", (one) => html`<${When} ms=${one.newest} />`], ["For example", (one) => html`<a href=${toTopic(letter, { tab: "records", seq: one.seq })}>${number(one.seq)}</a> <code class="cut">${line(one.sample, 80)}</code>`],
          ["", (one) => may && by === "tag" && one.key && html`<button class="button small" type="button" disabled=${Boolean(redriving.value[name])} onClick=${() => ask(one.key)}>Redrive these</button>`]]} />
        ${data.count > data.found.length && html`<p class="faint pad">Groups are made of the newest ${number(LOOKED_AT)}; the topic has ${plural(data.count, "record")}.</p>`}`
      : html`<${Empty} title="No dead letters">Jobs that fail too often end up in ${letter}.<//>`}
    ${trial && html`<${Redrive} name=${name} trial=${trial} onClose=${() => setTrial(null)} onDone=${() => { setTrial(null); reload(); again(); }} />`}
  <//>`;
}

function Redrive({ name, trial, onClose, onDone }) {
  const [rate, setRate] = useState("");
  const { body, answer } = trial;
  const isWrong = rate !== "" && !/^[1-9]\d{0,5}$/.test(rate);
  const submit = async (event) => {
    event.preventDefault();
    if (isWrong) return;
    if (rate) redriveSlowly(name, body, Number(rate), answer.redriven + answer.remaining);
    else {
      const told = await attempt(() => call("POST", `topics/${path(name)}/redrive`, body));
      if (told) say(`${plural(told.redriven, "job")} ready again`);
    }
    onDone();
  };
  return html`<${Dialog} title="Redrive" onClose=${onClose}><form onSubmit=${submit}><h2>Redrive</h2>
    <p>${plural(answer.redriven, "dead letter")} would become ${answer.redriven === 1 ? "a job" : "jobs"} again (${bytes(answer.redriven_bytes)}); ${number(answer.remaining)} would stay.</p>
    <label>At most so many per second; empty = all at once<input name="rate" inputmode="numeric" value=${rate} onInput=${(event) => setRate(event.target.value.trim())} aria-invalid=${String(isWrong)} autocomplete="off" /></label>
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Cancel</button><button class="button main" disabled=${!answer.redriven || isWrong}>Redrive</button></div></form><//>`;
}
