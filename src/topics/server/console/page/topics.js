// All topics: a virtual list that asks for what is on the screen, or a tree. Search, filters and order are in the URL.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { call, can, get, path, query } from "./api.js";
import { attempt, go, keep, place, toTopic, usePoll } from "./state.js";
import { bytes, number, plural, rate, short } from "./format.js";
import { Badge, Dialog, Download, Icon, Trouble, When } from "./parts.js";
import { Tree } from "./tree.js";

const ROW = 46;
const AHEAD = 12;
const PAGE = 200;
const KEPT = 60; // pages in memory
const REFRESH_MS = 3000;
const SUMS_MS = 15_000;
const SORTS = [["name", "Name"], ["-written_rate", "Rate in"], ["-count", "Records"], ["-bytes", "Size"], ["-lost_total", "Lost"], ["-ready", "Ready jobs"]];
const TYPES = [["", "Any type"], ["log", "Logs"], ["queue", "Queues"]];
const CLASSES = [["", "Any class"], ["fsync", "fsync"], ["disk", "disk"], ["memory", "memory"], ["ephemeral", "ephemeral"]];

// A list of which only the pages on the screen are asked for, wherever that is; these are asked for again and again.
function useList(fields, first, last) {
  const key = JSON.stringify(fields);
  const [, setVersion] = useState(0);
  const walk = useRef({});
  if (walk.current.key !== key) {
    walk.current.abort?.abort();
    walk.current = { key, pages: new Map(), size: null, hasEnd: false, cursor: "", busy: false, abort: new AbortController(), error: null };
  }
  const now = walk.current;
  now.wanted = [Math.floor(first / PAGE), Math.floor(Math.max(first, last - 1) / PAGE)];
  const redraw = () => walk.current === now && setVersion((one) => one + 1);
  const ask = async (page) => {
    const isStart = page === 0 || !now.cursor; // in another order than by name, a new walk
    const offset = isStart ? page * PAGE : (page - 1) * PAGE;
    const answer = await get(`topics${query({ detail: true, page_size: PAGE, cursor: isStart ? "" : now.cursor, offset: offset || "", ...fields })}`, { signal: now.abort.signal });
    if (page === 0 && fields.sort) {
      if (now.pages.size > 1) now.pages.clear(); // the order is another one now
      now.cursor = answer.next_cursor || "";
    }
    now.pages.delete(page);
    now.pages.set(page, { rows: answer.topics, at: Date.now() });
    now.hasEnd = !answer.next_cursor || (now.hasEnd && now.size > (page + 1) * PAGE);
    now.size = answer.next_cursor ? Math.max(now.size ?? 0, (page + 1) * PAGE + 1) : page * PAGE + answer.topics.length;
    for (const old of now.pages.keys()) if (now.pages.size > KEPT) now.pages.delete(old);
  };
  const load = async (maxAge) => {
    if (now.busy) return;
    now.busy = true;
    try {
      const began = Date.now();
      const isDue = (page) => !(now.pages.get(page)?.at >= (maxAge === Infinity ? 0 : began - maxAge)) && (page === 0 || !now.hasEnd || page * PAGE < now.size);
      for (;;) { // what is wanted may change meanwhile
        const page = [now.wanted[0], now.wanted[1]].find(isDue);
        if (page === undefined) break;
        if (page > 0 && fields.sort && !now.cursor) await ask(0);
        if (page === 0 || !now.pages.has(0) || !fields.sort || now.cursor) await ask(page);
        now.error = null;
        redraw();
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 400 && now.cursor) Object.assign(now, { cursor: "", pages: new Map() }); // that walk is over
      now.error = error;
      redraw();
    }
    now.busy = false;
  };
  useEffect(() => {
    load(Infinity);
  }, [key, ...now.wanted, now.pages.size]);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && load(REFRESH_MS - 100), REFRESH_MS);
    return () => clearInterval(timer);
  }, [key]);
  useEffect(() => () => walk.current.abort.abort(), []);
  const row = (at) => now.pages.get(Math.floor(at / PAGE))?.rows[at % PAGE];
  return { row, size: now.size, hasEnd: now.hasEnd, error: now.error, isLoading: now.pages.size === 0 && !now.error };
}

// All of it, page by page: for a download.
async function whole(fields) {
  const rows = [];
  let cursor = "";
  do {
    const answer = await get(`topics${query({ detail: true, page_size: 1000, cursor, ...fields })}`);
    rows.push(...answer.topics);
    cursor = answer.next_cursor || "";
  } while (cursor);
  return rows;
}

function useView() {
  const list = useRef(null);
  const [view, setView] = useState({ top: 0, height: 700 });
  useLayoutEffect(() => {
    const look = () => {
      if (!list.current) return;
      const { top } = list.current.getBoundingClientRect();
      setView({ top: Math.max(0, Math.floor(-top / ROW) * ROW), height: innerHeight });
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, []);
  return [list, view];
}

const Row = ({ row, at }) => html`<div role="row" class="topic-row" aria-rowindex=${at + 2} style=${{ top: `${at * ROW}px` }}>
  <span role="cell" class="name"><a class="cover" href=${toTopic(row.topic)}>${row.topic}</a>
    ${row.type === "queue" && html`<${Badge} kind=${row.queue?.paused ? "warn" : ""}>${row.queue?.paused ? "paused queue" : "queue"}<//>`}</span>
  <span role="cell" class="wide">${row.class || (row.durable ? "fsync" : "–")}</span>
  <span role="cell" class="number">${row.written_rate === undefined ? "–" : rate(row.written_rate)}</span>
  <span role="cell" class="number wide">${row.read_rate === undefined ? "–" : rate(row.read_rate)}</span>
  <span role="cell" class="number" title=${number(row.count)}>${short(row.count)}</span>
  <span role="cell" class="number wide">${bytes(row.bytes)}</span>
  <span role="cell" class="number">${row.lost_total ? html`<${Badge} kind="lost">${short(row.lost_total)}<//>` : row.lost_total === 0 ? "0" : "–"}</span>
  <span role="cell" class="number wide">${row.queue ? html`${short(row.queue.ready)} ready` : row.cursors?.count ? html`${short(row.cursors.max_lag)} behind` : "–"}</span>
  <span role="cell" class="number wide">${row.newest_ts === undefined ? "–" : html`<${When} ms=${row.newest_ts} />`}</span>
</div>`;

function Choice({ name, options, value }) {
  return html`<select aria-label=${name} value=${value} onChange=${(event) => keep({ [name]: event.target.value })}>
    ${options.map(([id, title]) => html`<option value=${id}>${title}</option>`)}</select>`;
}

function Chips({ name, options, value }) {
  return html`<div class="chips" role="group" aria-label=${name}>${options.map(([id, title]) => html`<button type="button" class="button" aria-pressed=${String(value === id)} onClick=${() => keep({ [name]: id })}>${title}</button>`)}</div>`;
}

function NewTopic({ onClose }) {
  const [name, setName] = useState("");
  const [type, setType] = useState("log");
  const submit = async (event) => {
    event.preventDefault();
    const made = await attempt(() => call("PUT", `topics/${path(name.trim())}`, { type }), `${name.trim()} is there`);
    if (made) {
      onClose();
      go(toTopic(made.topic));
    }
  };
  return html`<${Dialog} title="New topic" onClose=${onClose}><form onSubmit=${submit}><h2>New topic</h2>
    <label>Name<input value=${name} onInput=${(event) => setName(event.target.value)} autofocus autocomplete="off" /></label>
    <label>Type<select value=${type} onChange=${(event) => setType(event.target.value)}><option value="log">Log: readers keep their own place</option><option value="queue">Queue: jobs are leased and acked</option></select></label>
    <div class="actions"><button class="button" type="button" onClick=${onClose}>Cancel</button><button class="button main" disabled=${!name.trim()}>Create</button></div>
  </form><//>`;
}

const Waiting = ({ at }) => html`<div role="row" class="topic-row waiting" style=${{ top: `${at * ROW}px` }}><span role="cell" class="name"><i class="hollow"></i></span></div>`;

const VIEWS = [["", "List"], ["tree", "Tree"]];

function Sums({ total }) {
  if (!total) return html`Loading`;
  return html`${plural(total.topics, "topic")}<span aria-hidden="true"> · </span>${plural(total.count, "record")}<span aria-hidden="true"> · </span>${bytes(total.bytes)}<span aria-hidden="true"> · </span>${rate(total.written_rate)} in<span aria-hidden="true"> · </span>${total.lost_total ? html`<span class="danger-text">${short(total.lost_total)} lost</span>` : "none lost"}`;
}

export function Topics() {
  const { q = "", sort = "name", type = "", class: kind = "", view: shape = "" } = place.value.fields;
  const [isNew, setNew] = useState(false);
  const narrowed = { contains: q, type, class: kind };
  const fields = { ...narrowed, sort: sort === "name" ? "" : sort };
  const sums = usePoll((options) => get(`tree${query({ ...narrowed, page_size: 1 })}`, options), SUMS_MS, [q, type, kind], true);
  const timer = useRef(0);
  const search = (event) => {
    clearTimeout(timer.current);
    const { value } = event.target;
    timer.current = setTimeout(() => keep({ q: value }), 120);
  };
  const total = sums.data?.total;
  return html`<div class="head"><div><h1>Topics</h1><p role="status"><${Sums} total=${total} />${q ? html` with “${q}”` : ""}</p></div>
    <div class="row"><${Download} name="topics" rows=${() => whole(fields)} />${can("admin") && html`<button class="button main" type="button" onClick=${() => setNew(true)}>New topic</button>`}</div></div>
  <div class="filters">
    <div class="search"><${Icon} name="search" /><input type="search" aria-label="Search topics" placeholder="Search topics" key="search" defaultValue=${q} onInput=${search} /><kbd>/</kbd></div>
    <div class="chips" role="group" aria-label="Shown as">${VIEWS.map(([id, title]) => html`<button type="button" class="button" aria-pressed=${String(shape === id)} onClick=${() => keep({ view: id })}>${title}</button>`)}</div>
    <${Chips} name="type" options=${TYPES} value=${type} /><${Chips} name="class" options=${CLASSES} value=${kind} />
    ${shape !== "tree" && html`<${Choice} name="sort" options=${SORTS.map(([id, title]) => [id, `By ${title.toLowerCase()}`])} value=${sort} />`}
  </div>
  ${shape === "tree" ? html`<${Tree} fields=${narrowed} />` : html`<${List} key=${JSON.stringify(fields)} fields=${fields} total=${total?.topics} isNarrow=${Boolean(q || type || kind)} />`}
  ${isNew && html`<${NewTopic} onClose=${() => setNew(false)} />`}`;
}

const TITLES = [["Topic"], ["Class", 1], ["In", 0, 1], ["Out", 1, 1], ["Records", 0, 1], ["Size", 1, 1], ["Lost", 0, 1], ["Waiting", 1, 1], ["Newest", 1, 1]];

function List({ fields, total, isNarrow }) {
  const [list, view] = useView();
  const first = Math.max(0, view.top / ROW - AHEAD);
  const wanted = Math.ceil((view.top + view.height) / ROW) + AHEAD;
  const { row, size, hasEnd, error, isLoading } = useList(fields, first, wanted);
  const count = hasEnd ? size : Math.max(size ?? 0, total ?? 0);
  const last = Math.min(count, wanted);
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, n) => first + n);
  return html`<${Trouble} error=${error} />
  <div class="card topic-list" role="table" aria-label="Topics" aria-rowcount=${count + 1}>
    <div role="rowgroup"><div role="row" class="topic-row titles" aria-rowindex="1">${TITLES.map(([title, isWide, isNumber]) => html`<span role="columnheader" class=${`${isWide ? "wide" : ""} ${isNumber ? "number" : ""}`}>${title}</span>`)}</div></div>
    <div role="rowgroup" ref=${list} class="rows" style=${{ height: `${count * ROW}px` }}>
      ${shown.map((at) => (row(at) ? html`<${Row} key=${row(at).topic} row=${row(at)} at=${at} />` : html`<${Waiting} key=${`at ${at}`} at=${at} />`))}
    </div>
    ${!count && !isLoading && html`<div class="empty"><strong>${isNarrow ? "No topic is like that" : "There are no topics yet"}</strong><p>${isNarrow ? "Search for another part of the name, or take a filter away." : "A topic comes into being with the first write to its name."}</p></div>`}
  </div>`;
}
