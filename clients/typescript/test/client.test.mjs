// Against the real server at TOPICS_URL with the key TOPICS_TOKEN, through a proxy that cuts connections, and against
// servers that play a script. Run by tests/client/test_typescript.py.

import assert from "node:assert/strict";
import http from "node:http";
import net from "node:net";
import test from "node:test";

import { ConnectionFailed, isLost, Topics, TopicsError } from "../dist/topics.js";

const url = process.env.TOPICS_URL;
const token = process.env.TOPICS_TOKEN;
const client = new Topics(url, { token });
let count = 0;
const named = (what) => `${what}-${process.pid}-${count++}`;
const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, n) => ({ data: from + n }));

async function collected(items, most = Infinity) {
  const found = [];
  for await (const item of items) if (found.push(item) >= most) break;
  return found;
}

/** A proxy to the server. `cut(n)`: the answers to the next n requests are thrown away, with their connections. */
async function proxy(t) {
  const open = new Set();
  const state = { cuts: 0, requests: 0, url: "", dropAll: () => open.forEach((socket) => socket.destroy()) };
  const target = new URL(url);
  const server = net.createServer((inner) => {
    const outer = net.connect(Number(target.port), target.hostname);
    open.add(inner);
    inner.on("data", () => state.requests++);
    inner.pipe(outer);
    outer.on("data", (data) => {
      if (state.cuts > 0 && state.cuts-- > 0) inner.destroy();
      else inner.write(data);
    });
    const end = () => {
      open.delete(inner);
      inner.destroy();
      outer.destroy();
    };
    for (const socket of [inner, outer]) socket.on("error", end).on("close", end);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  state.url = `http://127.0.0.1:${server.address().port}`;
  t.after(() => {
    server.close();
    state.dropAll();
  });
  return state;
}

/** A server that answers by the functions given, one per request; the last one again and again. */
async function scripted(t, ...answers) {
  const seen = [];
  const server = http.createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    (answers.length > 1 ? answers.shift() : answers[0])(response, request);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, seen };
}

const says = (status, body, headers = {}) => (response) => {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(typeof body === "string" ? body : JSON.stringify(body));
};
const refused = says(429, { error: { code: "throttled", message: "later", detail: { retry_after_ms: 1 } } });

test("writes and reads", async () => {
  const topic = named("orders");
  const written = await client.append(topic, [{ data: { sku: "Ä" }, tag: "eu" }, { data: 2 }]);
  assert.deepEqual([written.first_seq, written.last_seq, written.created], [1, 2, true]);
  await client.send(topic, { sku: "C" }, { tag: "us", meta: { by: "web" } });
  const diff = await client.diff(topic, 0, { include_tags: true });
  assert.deepEqual(diff.records.map((record) => record.data), [{ sku: "Ä" }, 2, { sku: "C" }]);
  assert.deepEqual(diff.records.map((record) => record.$tag ?? null), ["eu", null, "us"]);
  assert.equal((await client.call("show_topic", { topic })).count, 3);
});

test("an error of the server is a TopicsError", async () => {
  const topic = named("absent");
  await assert.rejects(client.diff(topic), (error) => {
    assert.ok(error instanceof TopicsError);
    assert.deepEqual([error.status, error.code, error.detail], [404, "topic_not_found", { topic }]);
    return error.message.startsWith(`POST /v0/topics/${topic}/diff: 404 topic_not_found`);
  });
  await assert.rejects(new Topics(url, { token: "wrong" }).call("show_me", {}), { status: 401 });
  await assert.rejects(client.diff(""), { name: "TypeError", message: "diff needs a topic" });
});

test("a consumer hands out losses in order, and ends at the head or when it is aborted", async () => {
  const topic = named("prices");
  await client.call("put_topic", { topic, cap_records: 3 });
  await client.append(topic, numbers(1, 5));
  const items = await collected(client.consume(topic, { follow: false, limit: 2 }));
  assert.deepEqual(items.map((i) => (isLost(i) ? [i.gap_from, i.gap_to, i.reason] : i.data)), [[1, 2, "cap"], 3, 4, 5]);
  const abort = new AbortController();
  const following = collected(client.consume(topic, { from_seq: 5, signal: abort.signal }), 2);
  await client.send(topic, 6);
  setTimeout(() => abort.abort(), 50);
  assert.ok((await following).length <= 1);
});

test("a list has all pages", async () => {
  const prefix = named("many");
  for (let n = 0; n < 5; n++) await client.send(`${prefix}.${n}`, n);
  const found = await collected(client.list("list_topics", { prefix, page_size: 2 }));
  assert.deepEqual(found.map((topic) => topic.topic), [0, 1, 2, 3, 4].map((n) => `${prefix}.${n}`));
});

test("a watch tells records, losses, and that it has caught up", async () => {
  const topic = named("watched");
  await client.call("put_topic", { topic, cap_records: 2 });
  await client.append(topic, numbers(1, 4));
  const watch = client.watch(topic);
  const types = [];
  for await (const event of watch) {
    types.push(event.type);
    if (event.type === "caught-up" && types.length === 3) await client.send(topic, 5);
    else if (event.type === "records" && event.records.at(-1).data === 5) watch.close();
  }
  assert.deepEqual(types, ["lost", "records", "caught-up", "records"]);
  const later = client.watch(topic, { cursor: watch.cursor });
  await client.send(topic, 6);
  for await (const event of later) {
    if (event.type !== "records") continue;
    assert.deepEqual(event.records.map((record) => record.data), [6]);
    break;
  }
});

test("a watch whose connections are cut misses nothing and repeats nothing", async (t) => {
  const way = await proxy(t);
  const topic = named("cut");
  await client.append(topic, numbers(1, 3));
  const seen = [];
  const watch = new Topics(way.url, { token }).watch(topic);
  for await (const event of watch) {
    if (event.type !== "records") continue;
    seen.push(...event.records.map((record) => record.data));
    if (seen.length >= 30) break;
    way.dropAll();
    await client.append(topic, numbers(seen.length + 1, seen.length + 3));
  }
  assert.deepEqual(seen, numbers(1, 30).map(({ data }) => data));
});

test("a watch ends with its last topic, and an absent topic is an error", async () => {
  const topics = [named("gone"), named("gone")];
  for (const topic of topics) await client.send(topic, 1);
  const types = [];
  for await (const event of client.watch(topics)) {
    types.push(event.type);
    if (types.filter((type) => type === "caught-up").length === 2 && types.at(-1) === "caught-up")
      for (const topic of topics) await client.call("delete_topic", { topic });
  }
  assert.equal(types.filter((type) => type === "topic-deleted").length, 2);
  await assert.rejects(collected(client.watch(topics[0])), { status: 404 });
});

test("closing a watch ends a loop that waits", async () => {
  const topic = named("idle");
  await client.send(topic, 1);
  const watch = client.watch(topic, { tail: true });
  const all = collected(watch);
  setTimeout(() => watch.close(), 30);
  assert.deepEqual((await all).filter((event) => event.type === "records"), []);
});

test("an append whose answer is lost is repeated and not doubled", async (t) => {
  const way = await proxy(t);
  const shaky = new Topics(way.url, { token });
  const topic = named("safe");
  await client.send(topic, 0);
  for (let n = 1; n <= 5; n++) {
    way.cuts = 1;
    const written = await shaky.send(topic, n);
    assert.deepEqual([written.deduped, written.first_seq], [true, n + 1]);
  }
  assert.equal((await client.call("show_topic", { topic })).count, 6);
});

test("a topic that remembers no keys gets no repeats, and neither does a claim", async (t) => {
  const way = await proxy(t);
  const shaky = new Topics(way.url, { token });
  const topic = named("queue");
  await client.call("put_topic", { topic, type: "queue", idempotency_window_ms: 0 });
  way.cuts = 1;
  await assert.rejects(shaky.append(topic, numbers(1, 2)), ConnectionFailed);
  assert.equal((await client.call("show_topic", { topic })).count, 2);
  way.cuts = 1;
  await assert.rejects(shaky.call("claim", { topic, node: "w" }), ConnectionFailed);
  assert.equal((await client.call("show_topic", { topic })).queue.in_flight, 1);
});

test("jobs are claimed and acked", async () => {
  const topic = named("jobs");
  await client.call("put_topic", { topic, type: "queue" });
  await client.append(topic, numbers(1, 3));
  const { claimed } = await client.call("claim", { topic, node: "w", max: 2 });
  const given = { topic, node: "w", seqs: claimed.map((j) => j.$seq), lease_ids: claimed.map((j) => j.lease_id) };
  assert.equal((await client.call("ack", given)).acked, 2);
});

test("a call that is refused for now is tried again", async (t) => {
  const server = await scripted(t, refused, refused, says(200, { status: "ok" }));
  assert.equal((await new Topics(server.url).call("health", {})).status, "ok");
  assert.equal(server.seen.length, 3);
  const busy = await scripted(t, refused);
  await assert.rejects(new Topics(busy.url, { retries: 2 }).call("health", {}), { code: "throttled" });
  assert.equal(busy.seen.length, 3);
  const proxied = await scripted(t, says(502, "<html>"), says(200, { status: "ok" }));
  assert.equal((await new Topics(proxied.url).call("health", {})).status, "ok");
});

test("a server that does not answer ends in time", async (t) => {
  const server = await scripted(t, () => undefined);
  await assert.rejects(new Topics(server.url, { timeoutMs: 50 }).call("health", {}), ConnectionFailed);
});

test("a stream is read right, however it is cut into pieces", async (t) => {
  const frame = (id, data, end) => `id: ${id}${end}event: record${end}data: ${JSON.stringify(data)}${end}${end}`;
  const records = (text) => ({ topic: "t", records: [{ $seq: 1, $ts: 1, data: text }], from_seq: 0, to_seq: 1, head_seq: 1 });
  const bytes = Buffer.from(`retry: 1\r\n\r\n: hb\n\n${frame("a", records("ä€😀"), "\r\n")}${frame("b", records(": x"), "\n")}`);
  const server = await scripted(t, async (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const byte of bytes) {
      response.write(Buffer.from([byte]));
      await new Promise(setImmediate);
    }
  });
  const watch = new Topics(server.url).watch("t");
  const events = await collected(watch, 2);
  assert.deepEqual(events.map((event) => event.records[0].data), ["ä€😀", ": x"]);
  assert.equal(watch.cursor, "b");
});

test("a stream that falls silent is opened again, where it was", async (t) => {
  const data = JSON.stringify({ topic: "t", records: [], from_seq: 0, to_seq: 1, head_seq: 1 });
  const server = await scripted(t, (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`id: here\nevent: record\ndata: ${data}\n\n`);
  });
  await collected(new Topics(server.url).watch("t", { heartbeat_ms: 20 }), 2);
  assert.deepEqual(server.seen, [
    "GET /v0/events?heartbeat_ms=20&topics=t",
    "GET /v0/events?heartbeat_ms=20&topics=t&cursor=here",
  ]);
});

test("the end of a stream by the server is an error that tells why", async (t) => {
  const server = await scripted(t, (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write('event: stream-error\ndata: {"code":429,"error":"pressure"}\n\n');
    response.write('event: stream-error\ndata: {"code":410,"error":"closed"}\n\n');
  });
  await assert.rejects(collected(new Topics(server.url).watch("t")), { status: 410, message: /410 closed/ });
});

test("a native EventSource opens with a ticket", { skip: !globalThis.EventSource && "no EventSource here" }, async () => {
  const topic = named("native");
  await client.send(topic, 7);
  const events = await client.events(topic);
  const event = await new Promise((resolve, reject) => {
    events.addEventListener("record", resolve);
    events.onerror = reject;
  });
  events.close();
  assert.deepEqual(JSON.parse(event.data).records.map((record) => record.data), [7]);
  assert.ok(!events.url.includes(token));
});
