// Who is connected: watch sessions, event streams, work streams and sockets.
import { html } from "./html.js";
import { get, path } from "./api.js";
import { toTopic, usePoll } from "./state.js";
import { bytes, duration, number } from "./format.js";
import { Badge, Card, Empty, Table, Trouble, act } from "./parts.js";

const NAMES_MAX = 4;
const KINDS = { watch: "watch stream", events: "event stream", work: "work stream", ws: "WebSocket" };

export function Live() {
  const { data, error, reload } = usePoll((options) => get("connections?page_size=500", options), 1500);
  const end = async (id) => {
    await act("DELETE", `connections/${path(id)}`, undefined, "The connection is ended");
    reload();
  };
  const rows = data?.connections || [];
  return html`<div class="head"><div><h1>Live</h1><p role="status">${data ? `${number(rows.length)}${data.next_cursor ? " and more" : ""} connected` : "Loading"}</p></div></div>
  <div class="stack"><${Trouble} error=${error} />
    ${data && html`<${Card}>${rows.length === 0
      ? html`<${Empty} title="Nobody is connected">Streams and sockets show up here. Try <code>curl -N …/v0/topics/NAME/events</code>.<//>`
      : html`<${Table} name="connections" rows=${rows} keyOf=${(one) => one.id} columns=${[
          ["Kind", (one) => html`<${Badge}>${KINDS[one.kind] || one.kind}<//>`], ["Key", (one) => one.key || html`<span class="faint">no name</span>`], ["From", (one) => html`<code>${one.remote}</code>`],
          ["Topics", (one) => html`${one.topics.slice(0, NAMES_MAX).map((name, n) => html`${n ? ", " : ""}<a class="wrap" href=${toTopic(name)}>${name}</a>`)}${one.topics.length > NAMES_MAX ? ` and ${one.topics.length - NAMES_MAX} more` : ""}`],
          ["Behind", (one) => number(one.lag), true], ["Held for it", (one) => bytes(one.held_bytes), true], ["Since", (one) => duration(one.age_ms / 1000), true],
          ["", (one) => html`<button class="button small" type="button" onClick=${() => end(one.id)}>End it</button>`]]} />`}<//>`}
  </div>`;
}
