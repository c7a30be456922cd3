// Routes of one topic: who copies into it, into whom it is copied, where its dead letters go. And a test of filters.
import { html, useEffect, useState } from "./html.js";
import { call, get, path, query } from "./api.js";
import { link, toTopic, usePoll } from "./state.js";
import { number, plural } from "./format.js";
import { Badge, Card, Empty, Table, Trouble } from "./parts.js";

const LOOKED_AT = 200; // records whose tags are tried

export const filterOf = (text) => {
  const tag = text.trim();
  return tag ? (tag.endsWith("*") ? ["tag", "Glob", tag] : ["tag", "Eq", tag]) : null;
};
export const remedy = (one) => html`Make room in <a href=${toTopic(one.dest, { tab: "config" })}>${one.dest}</a>, or delete the router; nothing is lost while it waits, unless the source loses it.`;

// The last records of a topic by their tags, and which of them a filter lets through: the server decides.
async function tried(source, filter, options) {
  const target = `topics/${path(source)}`;
  const { head_seq: head } = await get(`${target}?touch=false`, options);
  const body = { from_seq: Math.max(0, head - LOOKED_AT), limit: LOOKED_AT, include_tags: true, include_meta: false };
  const [all, passed] = await Promise.all([call("POST", `${target}/diff`, body, options), filter ? call("POST", `${target}/diff`, { ...body, filter }, options) : null]);
  const copied = passed && new Set(passed.records.map((one) => one.$seq));
  const groups = new Map();
  for (const { $seq, $tag = null } of all.records) {
    const group = groups.get($tag) || { tag: $tag, records: 0, copied: 0 };
    group.records += 1;
    if (!copied || copied.has($seq)) group.copied += 1;
    groups.set($tag, group);
  }
  return { count: all.records.length, copied: copied ? copied.size : all.records.length, groups: [...groups.values()].sort((a, b) => b.copied - a.copied || b.records - a.records) };
}

export function FilterTest({ source, filter }) {
  const [told, setTold] = useState(null);
  const key = JSON.stringify([source, filter]);
  useEffect(() => {
    setTold(null);
    if (!source) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      tried(source, filter, { signal: abort.signal })
        .then((data) => setTold({ data }))
        .catch((error) => error.name !== "AbortError" && setTold({ error: error.status === 404 ? "There is no such topic yet; nothing can be tried." : error.message }));
    }, 200);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [key]);
  if (!source) return null;
  if (told?.error) return html`<p class="faint" role="status">${told.error}</p>`;
  if (!told) return html`<p class="faint" role="status">Trying the last records</p>`;
  const { count, copied, groups } = told.data;
  return html`<div class="tried"><p role="status">${count ? html`Of the last ${plural(count, "record")}, <strong>${number(copied)}</strong> would be copied.` : "It has no records to try this with."}</p>
    ${groups.length > 0 && html`<${Table} name=${`filter-${source}`} rows=${groups.slice(0, 50)} data=${groups} keyOf=${(one) => `tag ${one.tag}`} columns=${[
      ["Tag", (one) => (one.tag === null ? html`<span class="faint">none</span>` : html`<span class="wrap">${one.tag}</span>`)],
      ["Records", (one) => number(one.records), true],
      ["", (one) => (one.copied ? html`<${Badge} kind="good">copied<//>` : html`<${Badge}>left out<//>`)]]} />`}</div>`;
}

const all = (fields, options) => get(`routers${query({ detail: true, page_size: 500, ...fields })}`, options).then(({ routers }) => routers);

const COLUMNS = (end, title) => [
  [title, (one) => html`<a class="wrap" href=${toTopic(one[end])}>${one[end]}</a>`],
  ["Router", (one) => html`<span class="wrap">${one.router}</span>`],
  ["Filter", (one) => (one.filter ? html`<code class="wrap">${one.filter.slice(1).join(" ")}</code>` : html`<span class="faint">all</span>`)],
  ["Copied", (one) => number(one.forwarded_total), true],
  ["Behind", (one) => number(one.lag), true],
  ["State", (one) => (one.state === "blocked" ? html`<${Badge} kind="lost">blocked<//> <span class="faint wrap">${one.blocked_by}</span>` : html`<${Badge} kind="good">${one.state}<//>`)],
];

export function Routes({ name, state }) {
  const { data, error } = usePoll((options) => Promise.all([all({ dest: name }, options), all({ source: name }, options)]), 2000, [name]);
  if (!data) return html`<${Trouble} error=${error} />`;
  const [into, out] = data;
  const { dead_letter: letter } = state.config;
  return html`<${Trouble} error=${error} />
    ${[...into, ...out].filter((one) => one.state === "blocked").map((one) => html`<p class="lost-note" key=${one.router}><span><strong>${one.router} is blocked:</strong> ${one.blocked_by}. ${remedy(one)}</span></p>`)}
    ${into.length + out.length === 0 && html`<div class="card"><${Empty} title="No router touches this topic">A router copies every record of one topic into another, in order. <a href=${link(["routers"])}>All routers</a><//></div>`}
    ${into.length > 0 && html`<${Card} title="Into it" aside="Topics whose records are copied here."><${Table} name=${`routes-into-${name}`} rows=${into} keyOf=${(one) => one.router} columns=${COLUMNS("source", "From")} /><//>`}
    ${out.length > 0 && html`<${Card} title="Out of it" aside="Topics that get its records."><${Table} name=${`routes-out-of-${name}`} rows=${out} keyOf=${(one) => one.router} columns=${COLUMNS("dest", "Into")} /><//>`}
    ${letter && html`<p class="faint">Jobs that fail too often go to ${letter === "*" ? "a topic that this key may not name" : html`<a class="wrap" href=${toTopic(letter)}>${letter}</a>`}.</p>`}`;
}
