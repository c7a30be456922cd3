// The names of topics as a tree, each branch with its sums. What is open is in the URL.
import { html } from "./html.js";
import { get, query } from "./api.js";
import { keep, place, toTopic, usePoll } from "./state.js";
import { bytes, number, rate, short } from "./format.js";
import { Badge, Download, Icon, Trouble } from "./parts.js";

const SHOWN = 500; // branches of one step
const OPEN_MAX = 24;

// Steps that are open, each with its branches; those below a closed one are not asked for.
async function look(fields, open, options) {
  const steps = new Map();
  const step = async (prefix) => {
    const told = await get(`tree${query({ ...fields, prefix, page_size: SHOWN })}`, options);
    steps.set(prefix, told);
    await Promise.all(told.branches.filter((one) => !one.topic && open.includes(one.prefix)).map((one) => step(one.prefix)));
  };
  await step("");
  return steps;
}

function flat(steps, prefix = "", depth = 0) {
  const told = steps.get(prefix);
  if (!told) return [];
  const rows = told.branches.flatMap((one) => [{ ...one, depth, parent: prefix }, ...(one.topic ? [] : flat(steps, one.prefix, depth + 1))]);
  return told.next_cursor ? [...rows, { more: true, prefix: `${prefix} more`, depth }] : rows;
}

export function Tree({ fields }) {
  const open = (place.value.fields.open || "").split(",").filter(Boolean);
  const { data, error } = usePoll((options) => look(fields, open, options), 10_000, [JSON.stringify(fields), open.join()], true);
  const toggle = (prefix) => keep({ open: (open.includes(prefix) ? open.filter((one) => !one.startsWith(prefix)) : [...open, prefix].slice(-OPEN_MAX)).join() });
  const rows = data ? flat(data) : [];
  return html`<${Trouble} error=${error} /><div class="card tree-view"><div class="table" tabindex="0" role="region" aria-label="Topics by name"><table role="treegrid" aria-label="Topics by name">
    <thead><tr><th scope="col">Name</th><th scope="col" class="number">Topics</th><th scope="col" class="number mid">In</th><th scope="col" class="number wide">Out</th><th scope="col" class="number">Records</th><th scope="col" class="number mid">Size</th><th scope="col" class="number">Lost</th><th scope="col" class="number wide">Deleted</th><th scope="col" class="number wide">Ready jobs</th></tr></thead>
    <tbody>${rows.map((one) => (one.more
      ? html`<tr key=${one.prefix} role="row" aria-level=${one.depth + 1}><td colspan="9" class="faint" style=${{ "--depth": one.depth }}>The first ${number(SHOWN)} are shown; search for a part of the name to see others.</td></tr>`
      : html`<${Row} key=${one.prefix + one.topic} one=${one} isOpen=${open.includes(one.prefix)} toggle=${toggle} />`))}</tbody></table>
    ${data && !rows.length && html`<div class="empty"><strong>No topic is like that</strong><p>Names are split at <code>:</code> and <code>.</code> here.</p></div>`}</div>
    <div class="under"><span class="faint">Names are split at <code>:</code> and <code>.</code>; each branch sums up all topics below it.</span><${Download} name="tree" rows=${rows.filter((one) => !one.more)} /></div></div>`;
}

const Row = ({ one, isOpen, toggle }) => html`<tr role="row" aria-level=${one.depth + 1} aria-expanded=${one.topic ? undefined : String(isOpen)}>
  <td class="name" style=${{ "--depth": one.depth }}>${one.topic
    ? html`<a class="wrap" href=${toTopic(one.prefix)}>${one.prefix.slice(one.parent.length) || one.prefix}</a>`
    : html`<button type="button" class="twist" aria-expanded=${String(isOpen)} onClick=${() => toggle(one.prefix)}><span class=${`turn ${isOpen ? "open" : ""}`}><${Icon} name="right" /></span><b class="wrap">${one.prefix.slice(one.parent.length)}</b></button>`}</td>
  <td class="number">${one.topic ? "" : number(one.topics)}</td><td class="number mid">${rate(one.written_rate)}</td><td class="number wide">${rate(one.read_rate)}</td>
  <td class="number" title=${number(one.count)}>${short(one.count)}</td><td class="number mid">${bytes(one.bytes)}</td>
  <td class="number">${one.lost_total + one.expired_total ? html`<${Badge} kind="lost">${short(one.lost_total + one.expired_total)}<//>` : "0"}</td>
  <td class="number wide">${short(one.deleted_total)}</td><td class="number wide">${one.ready ? short(one.ready) : "–"}</td></tr>`;
