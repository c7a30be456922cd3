// One topic: its timeline, records, losses, cursors, queue and config.
import { html, useState } from "./html.js";
import { call, can, get, path, query } from "./api.js";
import { go, keep, link, place, usePoll } from "./state.js";
import { bytes, duration, number, range, rate, reason, soon } from "./format.js";
import { Badge, Card, Destroy, Empty, Figure, Table, Tabs, Trouble, When, act } from "./parts.js";
import { Timeline } from "./timeline.js";
import { Records } from "./records.js";
import { Publish } from "./publish.js";
import { Config } from "./config.js";
import { Queue } from "./queue.js";
import { Routes } from "./routes.js";

async function look(name, last, options) {
  const target = `topics/${path(name)}`;
  const [state, { losses }, { cursors, next_cursor: more }] = await Promise.all([
    get(`${target}?touch=false`, options), get(`${target}/losses?limit=1000`, options), get(`${target}/cursors?page_size=200`, options),
  ]);
  const at = performance.now();
  const seconds = last.at ? (at - last.at) / 1000 : 0;
  if (last.epoch === state.epoch && seconds > 0) {
    const written = (state.head_seq - last.head) / seconds;
    last.rate = last.rate === null ? written : last.rate * 0.7 + written * 0.3;
  }
  Object.assign(last, { at, epoch: state.epoch, head: state.head_seq });
  return { state, losses, cursors, more, rate: last.rate };
}

const Losses = ({ losses, cursors, name }) => html`<${Card} title="Losses" aside="Newest first. What a cap, an age limit or a crash took.">
  ${losses.length === 0
    ? html`<${Empty} title="Nothing was ever lost here">Every record that was written is live, or somebody asked to delete it.<//>`
    : html`<${Table} name=${`losses-${name}`} rows=${losses} keyOf=${(loss) => `${loss.gap_from}-${loss.gap_to}`} columns=${[
        ["Seqs", (loss) => range(loss.gap_from, loss.gap_to), true],
        ["How many", (loss) => number(loss.gap_to - loss.gap_from + 1), true],
        ["Why", (loss) => html`<${Badge} kind="lost">${reason(loss.reason)}<//>`],
        ["When", (loss) => html`<${When} ms=${loss.ts} />`],
        ["Cursors that had not read it", (loss) => cursors.filter(({ seq }) => seq < loss.gap_to).map(({ name: one }) => one).join(", ") || html`<span class="faint">none</span>`],
      ]} />`}
<//>`;

function Cursors({ name, cursors, more, reload }) {
  const drop = async (cursor) => {
    await act("DELETE", `topics/${path(name)}/cursors/${path(cursor)}`, undefined, `The cursor ${cursor} is forgotten`);
    reload();
  };
  return html`<${Card} title="Named cursors" aside=${more ? "The first 200." : "Notes of readers about how far they are."}>
    ${cursors.length === 0
      ? html`<${Empty} title="No named cursors">A reader may store its place: <code>PUT /v0/topics/${name}/cursors/NAME</code> with a seq.<//>`
      : html`<${Table} name=${`cursors-${name}`} rows=${cursors} keyOf=${(one) => one.name} columns=${[
          ["Name", (one) => html`<strong class="wrap">${one.name}</strong>`],
          ["Read up to", (one) => number(one.seq), true],
          ["Behind", (one) => number(one.lag), true],
          ["Lost to it", (one) => (one.lost ? html`<${Badge} kind="lost">${number(one.lost)}<//>` : "0"), true],
          ["Loses records in", (one) => (one.seconds_until_loss === null ? html`<span class="faint">not foreseen</span>` : duration(one.seconds_until_loss))],
          ["Stored", (one) => html`<${When} ms=${one.updated_ts} />`],
          ["", (one) => html`<button class="button small" type="button" onClick=${() => drop(one.name)}>Forget</button>`],
        ]} />`}
  <//>`;
}

const DESTROYING = "Routers into and out of it, cursors and leases go with it.";

export function Topic({ name }) {
  const [last] = useState({ at: 0, head: 0, epoch: -1, rate: null });
  const [isDestroying, setDestroying] = useState(false);
  const { data, error, reload } = usePoll((options) => look(name, last, options), 1000, [name]);
  if (error?.status === 404) return html`<div class="head"><h1>${name}</h1></div><div class="card"><${Empty} title="There is no such topic">It was deleted, or nobody has written to it yet. <a href=${link(["topics"])}>All topics</a><//></div>`;
  if (error?.status === 403) return html`<div class="head"><h1>${name}</h1></div><div class="card"><${Empty} title="This key may not look here">${error.message}<//></div>`;
  if (!data) return html`<div class="head"><h1>${name}</h1></div><${Trouble} error=${error} />`;
  const { state, losses, cursors, more } = data;
  const isQueue = state.type === "queue";
  const tabs = [
    ["timeline", "Timeline"], ["records", "Records"], ...(isQueue ? [["queue", "Queue"]] : []),
    ["losses", losses.length ? `Losses (${losses.length})` : "Losses"], ["cursors", cursors.length ? `Cursors (${cursors.length})` : "Cursors"], ["routes", "Routes"], ["config", "Config"],
  ];
  const { tab = "timeline" } = place.value.fields;
  return html`<div class="head"><div><h1>${name}</h1>
      <p class="row"><${Badge}>${state.type}<//><${Badge}>${state.config.durability}<//>${state.paused && html`<${Badge} kind="warn">paused<//>`}
        ${state.config.cap_records > 0 && html`<${Badge}>keeps ${number(state.config.cap_records)}<//>`}${state.config.ttl_ms > 0 && html`<${Badge}>for ${duration(state.config.ttl_ms / 1000)}<//>`}
        <span>last written <${When} ms=${state.last_write_ts} /></span></p></div>
    <div class="row">${can("delete") && html`<button class="button" type="button" onClick=${() => setDestroying(true)}>Delete</button>`}</div></div>
  <${Tabs} label="Parts of the topic" tabs=${tabs} current=${tab} onSelect=${(next) => keep({ tab: next, seq: "" })} />
  <div class="stack" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
    ${tab === "timeline" && html`
      <dl class="card figures">
        <${Figure} label="Written" value=${number(state.written_total ?? state.head_seq)} note=${data.rate === null ? "" : `${rate(data.rate)} now`} />
        <${Figure} label="Live" value=${number(state.count)} note=${bytes(state.bytes)} />
        <${Figure} label="Lost" value=${number((state.lost_total ?? 0) + (state.expired_total ?? 0))} kind=${state.lost_total + state.expired_total > 0 ? "lost" : ""} note=${state.expired_total ? `${number(state.expired_total)} by age` : ""} />
        <${Figure} label="Deleted" value=${number(state.deleted_total)} note=${isQueue ? "acks included" : "asked for"} />
        <${Figure} label="Next loss" value=${state.seconds_until_loss === null || state.seconds_until_loss === undefined ? "none" : soon(state.seconds_until_loss)} note=${state.seconds_until_loss === null ? "not foreseen" : "at this rate"} />
      </dl>
      <${Timeline} state=${state} losses=${losses} cursors=${cursors} />
      ${can("write") && html`<${Publish} name=${name} isQueue=${isQueue} onWritten=${reload} />`}`}
    ${tab === "records" && html`<${Records} name=${name} state=${state} />${can("write") && html`<${Publish} name=${name} isQueue=${isQueue} onWritten=${reload} />`}`}
    ${tab === "queue" && isQueue && html`<${Queue} name=${name} state=${state} reload=${reload} />`}
    ${tab === "losses" && html`<${Losses} losses=${losses} cursors=${cursors} name=${name} />`}
    ${tab === "cursors" && html`<${Cursors} name=${name} cursors=${cursors} more=${more} reload=${reload} />`}
    ${tab === "routes" && html`<${Routes} name=${name} state=${state} />`}
    ${tab === "config" && html`<${Config} name=${name} state=${state} reload=${reload} />`}
  </div>
  ${isDestroying && html`<${Destroy} title=${`Delete ${name}`} name=${name} count=${state.count} size=${state.bytes} more=${DESTROYING} verb="Delete topic"
    act=${() => call("DELETE", `topics/${path(name)}${query({ epoch: state.epoch })}`)} onDone=${() => go(link(["topics"]))} onClose=${() => setDestroying(false)} />`}`;
}
