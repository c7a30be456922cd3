// A queue: what is ready, in flight, delayed and dead; who holds which job, and for how long.
import { html, useRef } from "./html.js";
import { can, get, path } from "./api.js";
import { now, toTopic, usePoll } from "./state.js";
import { duration, number, plural, rate } from "./format.js";
import { Badge, Card, Empty, Figure, Icon, Table, Trouble, act } from "./parts.js";
import { Next } from "./jobs.js";
import { Dead } from "./letters.js";

const EXTEND_MS = 60_000;

function useDrain(state) {
  const past = useRef([]);
  const last = past.current.at(-1);
  if (!last || last.head !== state.head_seq || last.gone !== state.deleted_total) past.current.push({ at: Date.now(), head: state.head_seq, gone: state.deleted_total });
  past.current = past.current.filter((one) => one.at > Date.now() - 30_000).slice(-60);
  const first = past.current[0];
  const seconds = first ? (Date.now() - first.at) / 1000 : 0;
  if (seconds < 3) return { in: null, out: null };
  return { in: (state.head_seq - first.head) / seconds, out: (state.deleted_total - first.gone) / seconds };
}

function forecast({ ready, in_flight: inFlight }, flow) {
  const waiting = ready + inFlight;
  if (!waiting) return "Empty.";
  if (flow.out === null) return "Measuring how fast it drains.";
  const net = flow.out - flow.in;
  if (net <= 0.01) return flow.out ? "It grows: jobs come faster than they are done." : "Nobody completes jobs now.";
  return `Empty in ${duration(waiting / net)} at this rate.`;
}

// Those of one worker together, the first to end first.
const byNode = (leases) => [...leases].sort((a, b) => (a.node < b.node ? -1 : a.node > b.node ? 1 : a.deadline - b.deadline || a.$seq - b.$seq));

export function Queue({ name, state, reload }) {
  const target = `topics/${path(name)}`;
  const { data, error } = usePoll((options) => get(`${target}/leases?page_size=200`, options), 1000, [name]);
  const flow = useDrain(state);
  const { queue, paused } = state;
  const toggle = async () => {
    await act("POST", `${target}/${paused ? "resume" : "pause"}`, {}, paused ? "The queue hands out jobs again" : "The queue hands out no jobs");
    reload();
  };
  const back = (lease) => act("POST", `${target}/nack`, { node: lease.node, seqs: [lease.$seq] }, `Job ${lease.$seq} is ready again`);
  const extend = (lease) => act("POST", `${target}/extend`, { node: lease.node, seqs: [lease.$seq], lease_ms: EXTEND_MS }, `Job ${lease.$seq} has a minute more`);
  return html`
    <section class="card"><header><h2>${paused ? html`<${Badge} kind="warn">paused<//> No jobs are handed out` : forecast(queue, flow)}</h2><div class="aside">
      ${can("admin") && html`<button class="button small" type="button" onClick=${toggle}><${Icon} name=${paused ? "play" : "pause"} /> ${paused ? "Resume" : "Pause"}</button>`}</div></header>
      <dl class="figures"><${Figure} label="Ready" value=${number(queue.ready)} note=${flow.in === null ? "" : `${rate(flow.in)} in`} />
        <${Figure} label="In flight" value=${number(queue.in_flight)} note=${flow.out === null ? "" : `${rate(flow.out)} done`} />
        <${Figure} label="Delayed" value=${number(queue.delayed)} />
        <${Figure} label="Dead-lettered" value=${number(queue.dead_lettered)} kind=${queue.dead_lettered ? "lost" : ""} note=${state.config.dead_letter ? `into ${state.config.dead_letter}` : "no dead_letter is set"} /></dl></section>
    <${Trouble} error=${error} />
    <${Card} title="Leases" aside=${data?.leases.length ? `${plural(new Set(data.leases.map((one) => one.node)).size, "worker")}, ${plural(data.leases.length, "job")}${data.next_cursor ? "; the first 200" : ""}` : "Who holds which job, and how long."}>
      ${data && (data.leases.length === 0
        ? html`<${Empty} title="No job is in flight">A worker asks for jobs with <code>POST /v0/topics/${name}/claim</code>.<//>`
        : html`<${Table} name=${`leases-${name}`} rows=${byNode(data.leases)} keyOf=${(one) => one.$seq} columns=${[
            ["Job", (one) => html`<a href=${toTopic(name, { tab: "records", seq: one.$seq })}>${number(one.$seq)}</a>`, true],
            ["Worker", (one) => html`<span class="wrap">${one.node}</span>`],
            ["Time left", (one) => html`<${Left} deadline=${one.deadline} whole=${state.config.lease_ms} />`],
            ["Delivery", (one) => `${number(one.deliveries)}${state.config.max_deliveries ? ` of ${number(state.config.max_deliveries)}` : ""}`, true],
            ["", (one) => can("write") && html`<span class="row tight"><button class="button small" type="button" onClick=${() => extend(one)}>One minute more</button><button class="button small" type="button" onClick=${() => back(one)}>Take back</button></span>`],
          ]} />`)}
    <//>
    <${Next} name=${name} state=${state} reload=${reload} />
    ${state.config.dead_letter && state.config.dead_letter !== "*" && html`<${Dead} name=${name} letter=${state.config.dead_letter} reload=${reload} />`}`;
}

function Left({ deadline, whole }) {
  const ms = deadline - now.value;
  const part = Math.max(0, Math.min(100, (ms / whole) * 100));
  return html`<span class="left"><span class="meter" aria-hidden="true"><i style=${{ width: `${part}%` }}></i></span>${ms > 0 ? duration(Math.ceil(ms / 1000)) : "ended"}</span>`;
}

