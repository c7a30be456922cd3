// The server itself: version, what it holds, its log and how fast the disk is, all metrics.
import { html, useState } from "./html.js";
import { ask, get } from "./api.js";
import { usePoll } from "./state.js";
import { bytes, duration, number, plural } from "./format.js";
import { Badge, Card, Copy, Figure, Table, Trouble } from "./parts.js";

const CLASSES = ["fsync", "disk", "memory", "ephemeral"];

async function look(options) {
  const [health, totals, text, ready] = await Promise.all([
    get("health", options), get("metrics", { ...options, accept: "application/json" }), ask("GET", "metrics", undefined, { ...options, accept: "text/plain" }),
    get("ready", options).then(() => "", (error) => error.message),
  ]);
  return { health, totals, text, ready };
}

// The buckets of fsync latencies: [bound in µs, how many], not cumulative.
export function buckets(text) {
  const found = [...text.matchAll(/^topics_wal_fsync_latency_us_bucket\{le="([^"]+)"\} (\S+)$/gm)].map(([, le, count]) => [le, Number(count)]);
  return found.map(([le, count], at) => [le, count - (at ? found[at - 1][1] : 0)]);
}

const micros = (le) => (le === "+Inf" ? "longer" : Number(le) < 1000 ? `up to ${le} µs` : `up to ${Number(le) / 1000} ms`);

function Fsyncs({ text }) {
  const all = buckets(text);
  const most = Math.max(1, ...all.map(([, count]) => count));
  return html`<ol class="histogram" aria-label="Time of fsyncs">${all.map(([le, count]) => html`<li key=${le}><span class="bound">${micros(le)}</span><span class="meter"><i style=${{ width: `${(count / most) * 100}%` }}></i></span><span class="number">${number(count)}</span></li>`)}</ol>`;
}

export function Server() {
  const { data, error } = usePoll(look, 2000);
  const [find, setFind] = useState("");
  if (!data) return html`<div class="head"><h1>Server</h1></div><${Trouble} error=${error} />`;
  const { health, totals, text, ready } = data;
  const { wal } = totals;
  const lines = text.split("\n").filter((one) => one && !one.startsWith("#") && one.includes(find));
  return html`<div class="head"><div><h1>Server</h1><p class="row"><${Badge}>topics ${health.version}<//> up ${duration(health.uptime_ms / 1000)}</p></div>
    <a class="button" href=${new URL("docs", document.baseURI).href} target="_blank" rel="noopener">Description of the API</a></div>
  <div class="stack"><${Trouble} error=${error} />
    ${ready && html`<p class="trouble" role="alert">Not ready: ${ready}</p>`}
    ${wal.read_only && html`<p class="trouble" role="alert">The log is read-only: writes are refused until the disk takes them again.</p>`}
    <dl class="card figures"><${Figure} label="Topics" value=${number(totals.topics)} note=${plural(totals.queue_topics, "queue")} /><${Figure} label="Records" value=${number(totals.records_live)} note=${bytes(totals.bytes_live)} />
      <${Figure} label="Routers" value=${number(totals.routers)} /><${Figure} label="Streams and sockets" value=${number(totals.sse_connections)} note=${plural(totals.watch_sessions, "session")} /><${Figure} label="Leases" value=${number(totals.queue_leases_in_flight)} /></dl>
    <div class="pair">
      <${Card} title="The log"><dl class="figures"><${Figure} label="Written" value=${bytes(wal.bytes_written)} note=${`${number(wal.frames)} frames`} /><${Figure} label="Batches" value=${number(wal.batches)} />
        <${Figure} label="Waiting" value=${number(wal.queue_depth)} note=${`${number(wal.queue_depth_peak)} at most`} /><${Figure} label="Had to wait" value=${number(wal.submit_full_total)} note="writes, the queue was full" /></dl><//>
      <${Card} title="Time of fsyncs" aside=${wal.fsync_count ? `${number(wal.fsync_count)}, ${(wal.fsync_micros_total / wal.fsync_count / 1000).toFixed(2)} ms on average` : "none yet"}><div class="body"><${Fsyncs} text=${text} /></div><//>
    </div>
    <${Card} title="Topics by class"><${Table} name="classes" rows=${CLASSES.map((name) => ({ class: name, topics: totals[`topics_${name}`] }))} keyOf=${(one) => one.class} columns=${[["Class", (one) => one.class], ["Topics", (one) => number(one.topics), true]]} /><//>
    <${Card} title="All metrics" aside=${html`<input type="search" aria-label="Search metrics" placeholder="Search metrics" value=${find} onInput=${(event) => setFind(event.target.value)} /><${Copy} text=${text} label="Copy all" />`}>
      <pre class="metrics" tabindex="0" aria-label="Metrics">${lines.slice(0, 400).join("\n") || "Nothing is like that."}</pre><//>
  </div>`;
}
