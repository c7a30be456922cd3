// A call as a command of the shell, of the command line, and as Python.
import { BASE, hasKey } from "./api.js";
import { parse } from "./format.js";

const PLAIN = /^[A-Za-z0-9_.:@%+=,/][A-Za-z0-9_.:@%+=,/-]*$/;
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const word = (text) => (PLAIN.test(text) ? text : quoted(text));
const option = (name, value) => (value === "" || PLAIN.test(value) ? `--${name}=${value}` : quoted(`--${name}=${value}`));

export function asCurl({ method, target, body }) {
  const words = ["curl"];
  if (method !== "POST" || body === undefined) words.push(`-X ${method}`);
  if (hasKey()) words.push('-H "Authorization: Bearer $TOPICS_TOKEN"');
  if (body !== undefined) words.push(`--json ${quoted(body)}`);
  return [...words, quoted(BASE + target)].join(" ");
}

export function asPython({ method, target, body }) {
  const lines = ["import json, os, urllib.request", ""];
  const fields = [`${JSON.stringify(BASE + target)}`, `method=${JSON.stringify(method)}`];
  const headers = [];
  if (body !== undefined) {
    lines.push(`body = ${JSON.stringify(body)}`);
    fields.push("data=body.encode()");
    headers.push('"Content-Type": "application/json"');
  }
  if (hasKey()) headers.push('"Authorization": f"Bearer {os.environ[\'TOPICS_TOKEN\']}"');
  if (headers.length) fields.push(`headers={${headers.join(", ")}}`);
  lines.push(`request = urllib.request.Request(${fields.join(", ")})`);
  lines.push("print(json.load(urllib.request.urlopen(request)))");
  return lines.join("\n");
}

// --- the command line

const ms = (value) => `${value}ms`;
const tag = (match) => (typeof match === "string" ? match : match[2]);
const given = (name, value) => (value === undefined || value === null ? [] : [option(name, value)]);

function send([, topic], { records, node, idempotency_key: key }) {
  const [first] = records;
  const isPlain = records.every((one) => Object.keys(one).every((field) => ["data", "tag", "node"].includes(field)) && one.tag === first.tag && one.node === first.node);
  const shared = [...given("node", node ?? (isPlain ? first.node : undefined)), ...given("idempotency-key", key)];
  if (isPlain) return ["send", topic, ...given("tag", first.tag), ...shared, "--", ...records.map((one) => JSON.stringify(one.data))];
  return ["send", topic, "--records", ...shared, "--", ...records.map((one) => JSON.stringify(one))];
}

const CONFIG = {
  type: (value) => option("type", value),
  durability: (value) => option("durability", value),
  cap_records: (value) => option("cap-records", value),
  cap_bytes: (value) => option("cap-bytes", value),
  ttl_ms: (value) => option("ttl", ms(value)),
  discard: (value) => option("discard", value),
  priority: (value) => option("priority", value ?? "auto"),
  idempotency_window_ms: (value) => option("idempotency-window", ms(value)),
  dedupe_node: (value) => (value ? "--dedupe-node" : "--no-dedupe-node"),
  lease_ms: (value) => option("lease", ms(value)),
  claim_jitter_ms: (value) => option("claim-jitter", ms(value)),
  max_deliveries: (value) => option("max-deliveries", value),
  dead_letter: (value) => option("dead-letter", value ?? "none"),
  leases_durable: (value) => (value ? "--leases-durable" : "--no-leases-durable"),
};
const QUEUE_ONLY = ["lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable"];

function put([, topic], config) {
  const shown = Object.entries(config).filter(([name]) => name in CONFIG && (config.type === "queue" || !QUEUE_ONLY.includes(name)));
  return ["put", topic, ...shown.map(([name, value]) => CONFIG[name](value)), "--yes"];
}

function remove([, topic], { before_seq: before, match }) {
  const isPrefix = Array.isArray(match) && match[1] === "Glob";
  const which = match === undefined || match === null ? [] : isPrefix ? [option("prefix", tag(match).slice(0, -1))] : [option("tag", tag(match))];
  return ["delete", topic, ...given("before", before), ...which, "--yes"];
}

function router([, name], { source, dest, filter, guarantee, preserve_node: node, preserve_tag: keptTag, create_dest: create, allow_cycle: cycle }) {
  const flags = [guarantee === "exactly_once" && "--exactly-once", node === false && "--drop-node", keptTag === false && "--drop-tag", create === false && "--no-create", cycle && "--allow-cycle"];
  return ["router", "put", name, source, dest, ...(filter ? [option("filter", tag(filter))] : []), ...flags.filter(Boolean)];
}

const jobs = (verb, more = () => []) => ([, queue], body) => ["queue", verb, queue, ...body.seqs.map(String), ...more(body), ...given("node", body.node)];
const ACTS = {
  "POST topics": send,
  "PUT topics": put,
  "DELETE topics": ([, topic]) => ["rm", topic, "--yes"],
  "POST topics/delete": remove,
  "PUT topics/cursors": ([, topic, , name], { seq, if_seq: at, epoch }) => ["cursor", "put", topic, name, String(seq), ...(at === undefined ? [] : [option("if-seq", at ?? "none")]), ...given("epoch", epoch)],
  "DELETE topics/cursors": ([, topic, , name]) => ["cursor", "rm", topic, name],
  "PUT routers": router,
  "DELETE routers": ([, name]) => ["router", "rm", name, "--yes"],
  "POST topics/claim": ([, queue], { node, max, lease_ms: lease }) => ["queue", "claim", queue, ...given("count", max), ...given("node", node), ...(lease ? [option("lease", ms(lease))] : [])],
  "POST topics/ack": jobs("ack"),
  "POST topics/nack": jobs("nack", ({ delay_ms: delay }) => (delay ? [option("delay", ms(delay))] : [])),
  "POST topics/extend": jobs("extend", ({ lease_ms: lease }) => [option("lease", ms(lease))]),
  "POST topics/redrive": ([, queue], { match, max }) => ["queue", "redrive", queue, ...(match ? [option("filter", tag(match))] : []), ...given("count", max), "--yes"],
  "POST topics/pause": ([, queue]) => ["queue", "pause", queue],
  "POST topics/resume": ([, queue]) => ["queue", "resume", queue],
};

// The command, or null if there is none for this call.
export function asCommand({ method, target, body }) {
  const parts = target.split("?")[0].split("/").map(decodeURIComponent);
  const act = ACTS[`${method} ${[parts[0], ...(parts[2] ? [parts[2]] : [])].join("/")}`];
  if (!act) return null;
  const words = act(parts, body === undefined ? {} : parse(body)).map((one) => (one.startsWith("--") || one.startsWith("'") ? one : word(one)));
  const url = new URL(".", BASE).href.replace(/v0\/$/, "").replace(/\/$/, "");
  return [`TOPICS_URL=${word(url)}`, "topics", ...words].join(" ");
}
