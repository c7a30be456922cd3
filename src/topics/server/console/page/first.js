// The first run: an empty server, one command to copy, and the moment the record arrives. A demo shop, on request.
import { html, signal, useEffect } from "./html.js";
import { BASE, call, can, get, hasKey } from "./api.js";
import { attempt, go, toTopic, usePoll } from "./state.js";
import { Command, Icon } from "./parts.js";

const LEFT = "topics.demo";
export const demo = signal(localStorage.getItem(LEFT) || ""); // "", left over, running, stopping
let trading = Promise.resolve();
const SHOP = {
  "demo:orders": { durability: "fsync" },
  "demo:clicks": { cap_records: 400 },
  "demo:audit": {},
  "demo:failed": {},
  "demo:mails": { type: "queue", max_deliveries: 3, dead_letter: "demo:failed", lease_ms: 20_000 },
};
const PEOPLE = ["ada", "grace", "edsger", "barbara", "alan", "radia", "donald", "frances"];
const GOODS = ["lamp", "desk", "kettle", "chair", "clock", "rug", "vase", "shelf"];
const any = (list) => list[Math.floor(Math.random() * list.length)];
const batch = (count, make) => ({ records: Array.from({ length: count }, make) });

const put = (name, config) => call("PUT", `topics/${encodeURIComponent(name)}`, config);
const write = (name, body) => call("POST", `topics/${encodeURIComponent(name)}`, body);
let order = 1000;

async function trade() {
  await write("demo:orders", batch(2, () => ({ data: { order: (order += 1), buyer: any(PEOPLE), item: any(GOODS), total: Math.round(Math.random() * 20000) / 100 }, tag: any(["web", "app"]) })));
  await write("demo:clicks", batch(24, () => ({ data: { who: any(PEOPLE), page: `/${any(GOODS)}`, ms: Math.floor(Math.random() * 900) }, node: any(["eu", "us"]) })));
  await write("demo:mails", batch(2, () => ({ data: { to: `${any(PEOPLE)}@example.org`, subject: `Your ${any(GOODS)}` } })));
  const node = any(["mailer-1", "mailer-2", "mailer-3"]);
  const { claimed } = await call("POST", "topics/demo%3Amails/claim", { node, max: 2 });
  const seqs = claimed.filter(() => Math.random() < 0.7).map((job) => job.$seq);
  if (seqs.length) await call("POST", "topics/demo%3Amails/ack", { node, seqs });
}

async function openShop() {
  for (const [name, config] of Object.entries(SHOP)) await put(name, config);
  await call("PUT", "routers/demo:orders-%3Eaudit", { source: "demo:orders", dest: "demo:audit" });
  for (let turn = 0; turn < 30 && demo.value === "running"; turn += 1) await trade();
  if (demo.value !== "running") return;
  const { head_seq } = await get("topics/demo%3Aclicks?touch=false");
  await call("PUT", "topics/demo%3Aclicks/cursors/dashboard", { seq: Math.max(0, head_seq - 120) });
  await call("PUT", "topics/demo%3Aclicks/cursors/billing", { seq: Math.max(0, head_seq - 520) });
}

export async function startDemo() {
  demo.value = "running";
  localStorage.setItem(LEFT, "left");
  const opening = attempt(async () => (await openShop(), true), "The demo shop is open");
  trading = opening;
  if (!(await opening) && demo.value === "running") demo.value = "left";
  const tick = async () => {
    if (demo.value !== "running") return;
    trading = trade().catch(() => {});
    await trading;
    setTimeout(tick, 1000);
  };
  tick();
}

export async function stopDemo() {
  demo.value = "stopping";
  await trading; // a write would make its topic anew
  const isGone = await attempt(async () => {
    for (const name of Object.keys(SHOP)) await call("DELETE", `topics/${encodeURIComponent(name)}`);
    return true;
  }, "The demo shop is gone");
  if (isGone) localStorage.removeItem(LEFT);
  demo.value = isGone ? "" : "left";
}

export function DemoBar() {
  if (!demo.value || !can("delete")) return null;
  return html`<p class="strip"><${Icon} name="live" /> ${demo.value === "left" ? "The topics of the demo shop are still here." : "The demo shop is trading in this tab."}
    <button class="button small" type="button" disabled=${demo.value === "stopping"} onClick=${stopDemo}>Remove it again</button></p>`;
}

export function FirstRun({ onArrival }) {
  const { data } = usePoll((options) => get("topics?page_size=1", options), 500);
  const arrived = data?.topics[0]?.topic;
  useEffect(() => {
    if (arrived && demo.value === "running") onArrival();
  }, [arrived, demo.value]);
  const key = hasKey() ? ' -H "Authorization: Bearer $TOPICS_TOKEN"' : "";
  const curl = `curl${key} --json '{"records":[{"data":{"hello":"world"}}]}' ${BASE}topics/hello`;
  return html`<div class="first">
    <h1>${arrived ? "It arrived." : "Nothing here yet. Write the first record."}</h1>
    <p class="faint">A topic comes into being with the first write to its name. Copy this into a terminal; this page notices.</p>
    <${Command} text=${curl} />
    <div class="arrival" role="status" aria-live="polite">
      ${arrived
        ? html`<p class="arrived"><${Icon} name="check" /> The topic <strong>${arrived}</strong> has its first record.</p>
            <div class="row"><button class="button main" type="button" onClick=${() => go(toTopic(arrived, { tab: "records" }))}>Look at it</button>
            <button class="button" type="button" onClick=${onArrival}>Go to the overview</button></div>`
        : html`<p class="waiting"><span class="pulse"></span> Waiting for a record</p>`}
    </div>
    ${!arrived && can("admin", "write", "delete", "read") && html`<div class="card pad demo"><div><h2>Or look around in a demo shop</h2>
      <p class="faint">Five topics with orders, clicks that outgrow their cap, a queue of mails. One click removes all of it.</p></div>
      <button class="button" type="button" disabled=${demo.value === "running"} onClick=${startDemo}>${demo.value === "running" ? "Opening" : "Open the demo shop"}</button></div>`}
  </div>`;
}
