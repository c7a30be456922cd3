// All topics: a virtual list that asks for pages as they are needed. Search, filters and order are in the URL.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { call, can, get, path, query } from "./api.js";
import { attempt, go, keep, place, toTopic } from "./state.js";
import { bytes, number, plural, rate, short } from "./format.js";
import { Badge, Dialog, Download, Icon, Trouble, When } from "./parts.js";

const ROW = 46;
const AHEAD = 12;
const PAGE = 500;
const REFRESH_MS = 3000;
const SORTS = [["name", "Name"], ["-written_rate", "Rate in"], ["-count", "Records"], ["-bytes", "Size"], ["-lost_total", "Lost"], ["-ready", "Ready jobs"]];
const TYPES = [["", "Any type"], ["log", "Logs"], ["queue", "Queues"]];
const CLASSES = [["", "Any class"], ["fsync", "fsync"], ["disk", "disk"], ["memory", "memory"], ["ephemeral", "ephemeral"]];

// The pages of a walk over the list, asked for one by one; those on the screen are asked for again.
function useList(fields) {
  const [state, setState] = useState({ rows: [], next: "", isLoading: true, error: null });
  const latest = useRef({ next: "", isLoading: false, abort: new AbortController() });
  const target = (cursor, size) => `topics${query({ detail: true, page_size: size, cursor, ...fields })}`;
  const load = async (cursor, rows) => {
    const walk = latest.current;
    if (walk.isLoading) return;
    walk.isLoading = true;
    try {
      const answer = await get(target(cursor, PAGE), { signal: walk.abort.signal });
      if (latest.current !== walk) return;
      setState({ rows: [...rows, ...matching(answer.topics, fields)], next: answer.next_cursor || "", isLoading: false, error: null });
    } catch (error) {
      if (latest.current === walk) setState((last) => ({ ...last, isLoading: false, error }));
    }
    walk.isLoading = false;
  };
  const key = JSON.stringify(fields);
  useEffect(() => {
    const walk = { isLoading: false, abort: new AbortController() };
    latest.current = walk;
    setState((last) => ({ ...last, isLoading: true }));
    load("", []);
    const timer = setInterval(async () => {
      if (document.hidden || walk.isLoading) return;
      try {
        const answer = await get(target("", PAGE), { signal: walk.abort.signal });
        const fresh = matching(answer.topics, fields);
        if (latest.current !== walk || walk.isLoading) return;
        setState((last) => {
          if (last.rows.length <= PAGE) return { rows: fresh, next: answer.next_cursor || "", isLoading: false, error: null };
          const byName = new Map(fresh.map((row) => [row.topic, row]));
          return { ...last, rows: last.rows.map((row) => byName.get(row.topic) || row), error: null };
        });
      } catch (error) {
        if (latest.current === walk) setState((last) => ({ ...last, error }));
      }
    }, REFRESH_MS);
    return () => {
      clearInterval(timer);
      walk.abort.abort();
    };
  }, [key]);
  return { ...state, more: () => state.next && load(state.next, state.rows) };
}

const matching = (rows, { contains = "", type = "", class: kind = "" }) =>
  rows.filter((row) => row.topic.includes(contains) && (!type || (row.type || type) === type) && (!kind || (row.class || kind) === kind));

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

const Row = ({ row, at }) => html`<div role="row" class="topic-row" style=${{ top: `${at * ROW}px` }}>
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

export function Topics() {
  const { q = "", sort = "name", type = "", class: kind = "" } = place.value.fields;
  const [isNew, setNew] = useState(false);
  const { rows, next, isLoading, error, more } = useList({ contains: q, sort: sort === "name" ? "" : sort, type, class: kind });
  const [list, view] = useView();
  const first = Math.max(0, view.top / ROW - AHEAD);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + AHEAD);
  useEffect(() => {
    if (last >= rows.length - AHEAD && next && !isLoading) more();
  }, [last, rows.length, next, isLoading]);
  const timer = useRef(0);
  const search = (event) => {
    clearTimeout(timer.current);
    const { value } = event.target;
    timer.current = setTimeout(() => keep({ q: value }), 120);
  };
  const titles = [["Topic"], ["Class", 1], ["In", 0, 1], ["Out", 1, 1], ["Records", 0, 1], ["Size", 1, 1], ["Lost", 0, 1], ["Waiting", 1, 1], ["Newest", 1, 1]];
  return html`<div class="head"><div><h1>Topics</h1><p role="status">${isLoading && !rows.length ? "Loading" : `${plural(rows.length, "topic")}${next ? " so far" : ""}${q ? ` with “${q}”` : ""}`}</p></div>
    <div class="row"><${Download} name="topics" rows=${rows} />${can("admin") && html`<button class="button main" type="button" onClick=${() => setNew(true)}>New topic</button>`}</div></div>
  <div class="filters">
    <div class="search"><${Icon} name="search" /><input type="search" aria-label="Search topics" placeholder="Search topics" key="search" defaultValue=${q} onInput=${search} /><kbd>/</kbd></div>
    <${Choice} name="type" options=${TYPES} value=${type} /><${Choice} name="class" options=${CLASSES} value=${kind} /><${Choice} name="sort" options=${SORTS.map(([id, title]) => [id, `By ${title.toLowerCase()}`])} value=${sort} />
  </div>
  <${Trouble} error=${error} />
  <div class="card topic-list" role="table" aria-label="Topics" aria-rowcount=${next ? -1 : rows.length + 1}>
    <div role="rowgroup"><div role="row" class="topic-row titles">${titles.map(([title, isWide, isNumber]) => html`<span role="columnheader" class=${`${isWide ? "wide" : ""} ${isNumber ? "number" : ""}`}>${title}</span>`)}</div></div>
    <div role="rowgroup" ref=${list} class="rows" style=${{ height: `${rows.length * ROW}px` }}>
      ${rows.slice(first, last).map((row, n) => html`<${Row} key=${row.topic} row=${row} at=${first + n} />`)}
    </div>
    ${!rows.length && !isLoading && html`<p class="empty">${q || type || kind ? "No topic is like that." : "There are no topics yet."}</p>`}
  </div>
  ${isNew && html`<${NewTopic} onClose=${() => setNew(false)} />`}`;
}
