// The server itself: what is worth a look, disk, memory, checkpoints, its log, settings with their origin, metrics.
import { html, useState } from "./html.js";
import { ask, can, get, isWhole } from "./api.js";
import { keep, link, place, toTopic, usePoll } from "./state.js";
import { bytes, duration, number, plural, soon } from "./format.js";
import { Badge, Card, Copy, Download, Empty, Figure, Icon, Table, Tabs, Trouble, When } from "./parts.js";

const CLASSES = ["fsync", "disk", "memory", "ephemeral"];
const SOON_S = 7 * 86_400;

async function look(options) {
  const [health, totals, ready, told] = await Promise.all([
    get("health", options), get("metrics", { ...options, accept: "application/json" }), get("ready", options).then(() => "", (error) => error.message),
    can("admin") && isWhole() ? get("server", options) : null,
  ]);
  return { health, totals, ready, told };
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
  return html`<div class="body"><ol class="histogram" aria-label="Time of fsyncs">${all.map(([le, count]) => html`<li key=${le}><span class="bound">${micros(le)}</span><span class="meter"><i style=${{ width: `${(count / most) * 100}%` }}></i></span><span class="number">${number(count)}</span></li>`)}</ol></div>
  <div class="under"><${Download} name="fsyncs" rows=${all.map(([up_to_us, count]) => ({ up_to_us, count }))} /></div>`;
}

// --- what is worth a look

const LEVELS = { fault: ["lost", "Fault"], note: ["warn", "Note"], ok: ["good", "In order"] };

function Findings({ findings }) {
  const [isAll, setAll] = useState(false);
  const open = findings.filter(({ level }) => level !== "ok");
  const shown = isAll ? findings : open;
  return html`<${Card} title="What is worth a look" className="findings" aside=${html`<span role="status">${open.length ? plural(open.length, "finding") : ""}</span>
      <button class="button small" type="button" aria-pressed=${String(isAll)} onClick=${() => setAll(!isAll)}>Also what is in order</button>`}>
    ${shown.length === 0
      ? html`<div class="all-well"><${Icon} name="check" /> <span>Nothing: disk, log, topics, cursors and routers are in order, as far as this key may see.</span></div>`
      : html`<${Table} name="findings" rows=${shown} data=${findings} keyOf=${(one) => one.level + one.subject + one.said} columns=${[
          ["", (one) => html`<${Badge} kind=${LEVELS[one.level][0]}>${LEVELS[one.level][1]}<//>`],
          ["What", (one) => (one.topic ? html`<a class="wrap" href=${toTopic(one.topic)}>${one.subject}</a>` : html`<strong>${one.subject}</strong>`)],
          ["How it is", (one) => html`<span class="wrap">${one.said}</span>`],
          ["What to do", (one) => html`<span class="wrap faint">${one.remedy}</span>`]]} />`}<//>`;
}

// --- disk, memory, checkpoints

const Meter = ({ part, kind = "", label }) =>
  html`<span class=${`meter wide-meter ${kind}`} role="img" aria-label=${label}><i style=${{ width: `${Math.min(100, Math.max(0, part * 100))}%` }}></i></span>`;

function Disk({ disk }) {
  const { free_bytes: free, total_bytes: total, seconds_until_full: until } = disk;
  if (free === null || total === null) return html`<${Card} title="Disk"><p class="faint pad">The system does not say how much room there is.</p><//>`;
  const used = 1 - free / total;
  return html`<${Card} title="Disk" aside=${`${bytes(total)} in all`}><div class="body stack tight">
    <p class="big">${bytes(free)} <span class="faint">free</span></p>
    <${Meter} part=${used} kind=${used > 0.95 ? "lost" : ""} label=${`${Math.round(used * 100)} % of the disk are used`} />
    <p class=${until !== null && until < SOON_S ? "danger-text" : "faint"}>${until === null ? "It does not fill, as far as the last hour shows." : `At the pace of the last hour it is full ${soon(until)}.`}</p></div><//>`;
}

const Memory = ({ memory }) => html`<${Card} title="Memory" aside=${`${bytes(memory.held_bytes_max)} may be held for connections`}><div class="body stack tight">
  <p class="big">${bytes(memory.resident_bytes)} <span class="faint">resident</span></p>
  <${Meter} part=${memory.held_bytes / memory.held_bytes_max} label=${`${bytes(memory.held_bytes)} are held for connections`} />
  <p class="faint">${bytes(memory.held_bytes)} held for connections: unsent answers, unfinished bodies.</p></div><//>`;

function Checkpoints({ told }) {
  const { taken, failed, running, last_ts: last, last_ms: took, failure, log_bytes: grown, due_bytes: due, due_ms: dueMs } = told;
  return html`<${Card} title="Checkpoints" aside=${running ? html`<${Badge} kind="good">one is under way<//>` : ""}>
    <dl class="figures"><${Figure} label="Taken" value=${number(taken)} note=${failed ? `${number(failed)} failed` : "none failed"} kind=${failed ? "lost" : ""} />
      <${Figure} label="The last" value=${last === null ? "none yet" : html`<${When} ms=${last} />`} note=${took === null ? "" : `took ${duration(took / 1000)}`} />
      <${Figure} label="Log since" value=${bytes(grown)} note=${`due at ${bytes(due)}, or after ${duration(dueMs / 1000)}`} /></dl>
    ${failure && html`<p class="trouble">${failure}</p>`}<//>`;
}

// --- settings

function Settings({ settings }) {
  const [find, setFind] = useState("");
  const [isChanged, setChanged] = useState(false);
  const wanted = find.toLowerCase();
  const shown = settings.filter((one) => (!isChanged || one.origin !== "default") && `${one.variable} ${one.meaning}`.toLowerCase().includes(wanted));
  const value = (one) => (one.secret ? html`<span class="faint">${one.origin === "default" ? "not set" : "set, never shown"}</span>` : one.value === "" ? html`<span class="faint">not set</span>` : html`<code class="wrap value-shown">${String(one.value)}</code>`);
  return html`<${Card} title="Settings" aside=${html`<input type="search" aria-label="Search settings" placeholder="Search settings" value=${find} onInput=${(event) => setFind(event.target.value)} />
      <button class="button small" type="button" aria-pressed=${String(isChanged)} onClick=${() => setChanged(!isChanged)}>Only what is set</button>`}>
    <${Table} name="settings" rows=${shown} keyOf=${(one) => one.name} empty="No setting is like that." columns=${[
      ["Setting", (one) => html`<code>${one.variable}</code>`], ["Value", value],
      ["From", (one) => (one.origin === "default" ? html`<span class="faint">default</span>` : html`<${Badge} kind="good">${one.origin === one.variable ? "environment" : one.origin}<//>`)],
      ["Default", (one) => (one.secret || one.default === "" ? html`<span class="faint">–</span>` : html`<code class="faint">${String(one.default)}</code>`)],
      ["Meaning", (one) => html`<span class="faint">${one.meaning}</span>`]]} /><//>`;
}

function Metrics({ text, error }) {
  const [find, setFind] = useState("");
  if (text === null) return html`<${Trouble} error=${error} />`;
  const lines = text.split("\n").filter((one) => one && !one.startsWith("#") && one.includes(find));
  const rows = lines.map((one) => ({ series: one.slice(0, one.lastIndexOf(" ")), value: Number(one.slice(one.lastIndexOf(" ") + 1)) }));
  return html`<${Card} title="All metrics" aside=${html`<input type="search" aria-label="Search metrics" placeholder="Search metrics" value=${find} onInput=${(event) => setFind(event.target.value)} /><${Copy} text=${text} label="Copy all" /><${Download} name="metrics" rows=${rows} />`}>
    <pre class="metrics" tabindex="0" aria-label="Metrics">${lines.slice(0, 400).join("\n") || "Nothing is like that."}</pre><//>`;
}

function Log({ totals, text }) {
  const { wal } = totals;
  return html`<div class="pair">
    <${Card} title="The log"><dl class="figures"><${Figure} label="Written" value=${bytes(wal.bytes_written)} note=${`${number(wal.frames)} frames`} /><${Figure} label="Batches" value=${number(wal.batches)} />
      <${Figure} label="Waiting" value=${number(wal.queue_depth)} note=${`${number(wal.queue_depth_peak)} at most`} /><${Figure} label="Had to wait" value=${number(wal.submit_full_total)} note="writes, the queue was full" /></dl><//>
    <${Card} title="Time of fsyncs" aside=${wal.fsync_count ? `${number(wal.fsync_count)}, ${(wal.fsync_micros_total / wal.fsync_count / 1000).toFixed(2)} ms on average` : "none yet"}>${text !== null && html`<${Fsyncs} text=${text} />`}<//>
  </div>`;
}

const Contents = ({ totals }) => html`<dl class="card figures"><${Figure} label="Topics" value=${number(totals.topics)} note=${plural(totals.queue_topics, "queue")} /><${Figure} label="Records" value=${number(totals.records_live)} note=${bytes(totals.bytes_live)} />
  <${Figure} label="Routers" value=${number(totals.routers)} /><${Figure} label="Streams and sockets" value=${number(totals.sse_connections)} note=${plural(totals.watch_sessions, "session")} /><${Figure} label="Leases" value=${number(totals.queue_leases_in_flight)} /></dl>`;

export function Server() {
  const { data, error } = usePoll(look, 2500);
  const doctor = usePoll((options) => get("doctor", options), 10_000);
  const metrics = usePoll((options) => ask("GET", "metrics", undefined, { ...options, accept: "text/plain" }), 5000);
  if (!data) return html`<div class="head"><h1>Server</h1></div><${Trouble} error=${error} />`;
  const { health, totals, ready, told } = data;
  const tabs = [["condition", "Condition"], ...(told ? [["settings", "Settings"]] : []), ["metrics", "Metrics"]];
  const { tab = "condition" } = place.value.fields;
  return html`<div class="head"><div><h1>Server</h1><p class="row"><${Badge}>topics ${health.version}<//>${told && html`<${Badge}>Python ${told.python}<//>`}<span>up ${duration(health.uptime_ms / 1000)}</span></p></div>
    <a class="button" href=${new URL("docs", document.baseURI).href} target="_blank" rel="noopener">Description of the API</a></div>
  <${Trouble} error=${error} />
  <${Tabs} label="Parts of the server" tabs=${tabs} current=${tab} onSelect=${(next) => keep({ tab: next })} />
  <div class="stack" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
    ${ready && html`<p class="trouble" role="alert">Not ready: ${ready}</p>`}
    ${totals.wal.read_only && html`<p class="trouble" role="alert">The log is read-only: writes are refused until the disk takes them again.</p>`}
    ${tab === "condition" && html`
      <${Trouble} error=${doctor.error} />${doctor.data && html`<${Findings} findings=${doctor.data.findings} />`}
      <${Contents} totals=${totals} />
      ${told && html`<div class="pair"><${Disk} disk=${told.disk} /><${Memory} memory=${told.memory} /></div><${Checkpoints} told=${told.checkpoints} />`}
      <${Log} totals=${totals} text=${metrics.data} />
      <${Card} title="Topics by class"><${Table} name="classes" rows=${CLASSES.map((name) => ({ class: name, topics: totals[`topics_${name}`] }))} keyOf=${(one) => one.class} columns=${[["Class", (one) => html`<a href=${link(["topics"], { class: one.class })}>${one.class}</a>`], ["Topics", (one) => number(one.topics), true]]} /><//>`}
    ${tab === "settings" && (told ? html`<${Settings} settings=${told.settings} />` : html`<div class="card"><${Empty} title="This key may not see the settings">That takes the scope admin, without prefixes.<//></div>`)}
    ${tab === "metrics" && html`<${Metrics} text=${metrics.data} error=${metrics.error} />`}
  </div>`;
}
