// The server at a glance: its health in one sentence, what happened lately, what was lost, what grows.
import { html, useEffect, useMemo, useState } from "./html.js";
import { get, query } from "./api.js";
import { link, toTopic, usePoll } from "./state.js";
import { bytes, number, plural, range, rate, reason, short, soon } from "./format.js";
import { Badge, Card, Empty, Table, When } from "./parts.js";
import { Chart } from "./chart.js";
import { DemoBar, FirstRun } from "./first.js";

const SPANS = [[600_000, "10 min"], [3_600_000, "1 h"], [86_400_000, "24 h"]];
const SOON_S = 86_400;
const LATELY_MS = 3_600_000;

const listed = (sort, size, options) => get(`topics${query({ detail: true, sort, page_size: size })}`, options).then(({ topics }) => topics);

// What was lost lately, and which cursors were hit or soon will be.
async function losing(options) {
  const { losses, endangered } = await get("losses?limit=20", options);
  return { feed: losses, soon: endangered.filter((one) => one.seconds_until_loss < SOON_S) };
}

let hasHistory = true; // an older server has none, and a key with prefixes may not see it
async function history(span, options) {
  if (!hasHistory) return null;
  try {
    return await get(`stats?history=${span}`, options);
  } catch (error) {
    hasHistory = error.status !== 404 && error.status !== 403;
    if (hasHistory) throw error;
    return null;
  }
}

async function blocked(options) {
  const { routers } = await get("routers?detail=true&page_size=1000", options);
  return routers.filter((one) => one.state === "blocked");
}

function Health({ totals, stats, losses, isReady }) {
  const recent = losses?.feed.filter((loss) => loss.ts > Date.now() - LATELY_MS) || [];
  const hit = recent.filter((loss) => loss.cursors_hit > 0);
  const last = stats?.samples?.slice(-10) || [];
  const seconds = (last.length * (stats?.interval_ms || 1000)) / 1000;
  const per = (field) => last.reduce((sum, sample) => sum + (sample[field] || 0), 0) / seconds;
  const slow = Math.max(...last.map((sample) => sample.p99_ms ?? 0));
  const disk = last.at(-1)?.disk_free_bytes;
  const next = losses?.soon[0];
  let verdict = html`<strong class="safe">Everything is kept.</strong>`;
  if (isReady === false) verdict = html`<strong class="danger-text">Nothing can be written now.</strong>`;
  else if (hit.length) verdict = html`<strong class="danger-text">Readers are losing records.</strong>`;
  else if (recent.length) verdict = html`<strong>Records were lost in the last hour, none that a named cursor still needed.</strong>`;
  return html`<p class=${`health ${isReady === false || hit.length ? "bad" : ""}`} role="status">${verdict} ${" "}
    ${last.length > 0 && html`${number(Math.round(per("written")))} records/s in, ${number(Math.round(per("delivered") + per("read")))} out${slow > 0 ? `, p99 ${slow < 10 ? slow.toFixed(1) : Math.round(slow)} ms` : ""}${disk ? `, ${bytes(disk)} free` : ""}. `}
    ${totals && html`${plural(totals.topics, "topic")} ${totals.topics === 1 ? "holds" : "hold"} ${plural(totals.records_live, "record")}, ${bytes(totals.bytes_live)}. `}
    ${next && html`<span class="danger-text"><a href=${toTopic(next.topic)}>${next.topic}</a> takes unread records from <b>${next.name}</b> ${soon(next.seconds_until_loss)}.</span>`}</p>`;
}

function Charts({ stats, span, setSpan }) {
  const samples = stats.samples;
  const per = 1000 / stats.interval_ms;
  const columns = useMemo(() => {
    const of = (field, by = 1) => samples.map((sample) => (sample[field] === null || sample[field] === undefined ? null : sample[field] * by));
    return { times: samples.map(({ ts }) => ts / 1000), written: of("written", per), out: samples.map((one) => ((one.read || 0) + (one.delivered || 0)) * per), p50: of("p50_ms"), p99: of("p99_ms"), memory: of("memory_bytes"), lost: of("lost", per) };
  }, [samples]);
  const ms = (value) => (value === null ? "–" : `${value < 10 ? Number(value.toFixed(2)) : Math.round(value)} ms`);
  const charts = [
    ["Records", (value) => (value === null ? "–" : `${short(Number(value.toFixed(1)))}/s`), [["in", "--live", columns.written], ["out", "--blue", columns.out]]],
    ["Time of a request", ms, [["p99", "--violet", columns.p99], ["p50", "--blue", columns.p50]]],
    ["Lost", (value) => (value === null ? "–" : `${short(Number(value.toFixed(1)))}/s`), [["lost", "--lost", columns.lost]]],
    ["Memory", bytes, [["resident", "--warn", columns.memory]]],
  ];
  return html`<div class="row spread"><h2>Lately</h2><div class="row">${SPANS.map(([value, title]) => html`<button class="button small" type="button" aria-pressed=${String(value === span)} onClick=${() => setSpan(value)}>${title}</button>`)}</div></div>
  <div class="charts">${charts.map(([title, format, series]) => html`<section class="card" key=${title}><header><h2>${title}</h2><div class="aside">${series.map(([label, color, values]) => html`<span class="legend-item"><i style=${{ background: `var(${color})` }}></i>${label} <b>${format(values.at(-1) ?? null)}</b></span>`)}</div></header>
    <${Chart} label=${title} times=${columns.times} format=${format} series=${series.map(([label, color, values]) => ({ label, color, values }))} /></section>`)}</div>`;
}

const Hit = ({ loss }) =>
  loss.cursors_hit === 0
    ? html`<span class="faint">none</span>`
    : html`<span class="hit">${loss.cursors.slice(0, 4).map((name) => html`<a key=${name} class="badge lost" href=${toTopic(loss.topic, { tab: "cursors" })}>${name}</a>`)}${loss.cursors_hit > 4 ? html` <span class="faint">and ${number(loss.cursors_hit - 4)} more</span>` : ""}</span>`;

const Feed = ({ feed }) => html`<${Card} title="What was lost" aside="Newest first, with the cursors that had not read it.">
  ${feed.length === 0 ? html`<${Empty} title="Nothing was lost">Caps, age limits and crashes have taken nothing from anybody.<//>`
    : html`<${Table} name="losses" rows=${feed} keyOf=${(loss) => `${loss.topic}${loss.gap_from}-${loss.gap_to}`} columns=${[
        ["Topic", (loss) => html`<a class="wrap" href=${toTopic(loss.topic, { tab: "losses" })}>${loss.topic}</a>`],
        ["Seqs", (loss) => range(loss.gap_from, loss.gap_to), true], ["How many", (loss) => number(loss.gap_to - loss.gap_from + 1), true],
        ["Why", (loss) => html`<${Badge} kind="lost">${reason(loss.reason)}<//>`], ["When", (loss) => html`<${When} ms=${loss.ts} />`],
        ["Cursors hit", (loss) => html`<${Hit} loss=${loss} />`]]} />`}<//>`;

const Busy = ({ rows }) => html`<${Card} title="Busiest topics" aside=${html`<a href=${link(["topics"], { sort: "-written_rate" })}>All</a>`}>
  <${Table} name="busiest" rows=${rows} keyOf=${(row) => row.topic} columns=${[
    ["Topic", (row) => html`<a class="wrap" href=${toTopic(row.topic)}>${row.topic}</a>`], ["In", (row) => rate(row.written_rate), true],
    ["Records", (row) => short(row.count), true]]} /><//>`;

// Jobs came faster in the last minute than they were handed out, and some wait.
const isGrowing = (row) => row.queue?.ready > 0 && row.written_rate > row.read_rate * 1.05;

const Queues = ({ rows }) => html`<${Card} title="Queues" aside=${html`<a href=${link(["topics"], { type: "queue", sort: "-ready" })}>All</a>`}>
  <${Table} name="queues" rows=${rows} keyOf=${(row) => row.topic} empty="There are no queues." columns=${[
    ["Queue", (row) => html`<a class="wrap" href=${toTopic(row.topic, { tab: "queue" })}>${row.topic}</a> ${row.queue?.paused ? html`<${Badge} kind="warn">paused<//>` : isGrowing(row) ? html`<${Badge} kind="warn">grows<//>` : ""}`],
    ["Ready", (row) => number(row.queue?.ready), true], ["In flight", (row) => number(row.queue?.in_flight), true],
    ["Dead", (row) => (row.queue?.dead ? html`<${Badge} kind="lost">${number(row.queue.dead)}<//>` : number(row.queue?.dead)), true]]} /><//>`;

export function Overview() {
  const [span, setSpan] = useState(SPANS[0][0]);
  const [isFirst, setFirst] = useState(false); // nothing was here; until the user goes on
  const totals = usePoll((options) => get("metrics", { ...options, accept: "application/json" }), 2000);
  const stats = usePoll((options) => history(span, options), 2000, [span]);
  const losses = usePoll(losing, 5000);
  const busy = usePoll((options) => listed("-written_rate", 6, options), 3000);
  const queues = usePoll((options) => get("topics?detail=true&type=queue&sort=-ready&page_size=6", options).then(({ topics }) => topics.filter((row) => row.queue)), 3000);
  const stuck = usePoll(blocked, 5000);
  const names = usePoll((options) => get("topics?page_size=1", options), 2000);
  useEffect(() => {
    if (names.data?.topics.length === 0) setFirst(true);
  }, [names.data]);
  if (isFirst) return html`<${FirstRun} onArrival=${() => setFirst(false)} />`;
  if (!names.data) return html`<div class="head"><h1>Overview</h1></div>`;
    return html`<div class="head"><h1>Overview</h1></div><div class="stack">
    <${DemoBar} />
    <${Health} totals=${totals.data} stats=${stats.data} losses=${losses.data} isReady=${totals.data?.wal ? !totals.data.wal.read_only : undefined} />
    ${stats.data?.samples?.length > 1 && html`<${Charts} stats=${stats.data} span=${span} setSpan=${setSpan} />`}
    ${stuck.data?.map((router) => html`<p class="lost-note" key=${router.router}><strong>The router ${router.router} is blocked:</strong> ${router.blocked_by}</p>`)}
    ${losses.data && html`<${Feed} feed=${losses.data.feed} />`}
    <div class="pair">${busy.data && html`<${Busy} rows=${busy.data} />`}${queues.data && html`<${Queues} rows=${queues.data} />`}</div>
  </div>`;
}
