// The config of a topic: what each field means, what would change, what would go, before anything is saved.
import { html, useEffect, useMemo, useState } from "./html.js";
import { call, can, path } from "./api.js";
import { attempt, say } from "./state.js";
import { bytes, number, plural } from "./format.js";
import { Badge, Card, Destroy, Icon } from "./parts.js";

const CLASSES = ["ephemeral", "memory", "disk", "fsync"];
const FIELDS = [
  ["How safe", [
    ["durability", CLASSES, "fsync: on disk before the answer. disk: within moments. memory: no promise. ephemeral: never on disk."],
    ["idempotency_window_ms", "ms", "How long idempotency keys are remembered; 0 = not at all."],
  ]],
  ["How much is kept", [
    ["cap_records", "number", "At most this many records; 0 = no cap."],
    ["cap_bytes", "bytes", "At most this many bytes; 0 = no cap."],
    ["ttl_ms", "ms", "Records older than this are gone; 0 = never."],
    ["discard", ["old", "reject"], "At a cap: old ones go, or new ones are refused."],
  ]],
  ["Who comes first", [
    ["priority", "maybe", "-1000 to 1000, under pressure; empty = by how recently it was read."],
    ["auto_priority", "flag", "Without a priority: derive it from the last read."],
    ["auto_create", "flag", "May a write create the topic."],
    ["dedupe_node", "flag", "Does a reader's node filter apply here."],
  ]],
  ["As a queue", [
    ["lease_ms", "ms", "How long a worker has a job, 100 to 86400000."],
    ["max_deliveries", "number", "Deliveries before a job becomes a dead letter; 0 = no limit."],
    ["dead_letter", "text", "The topic that gets those; empty = none."],
    ["claim_jitter_ms", "ms", "Claims within this window share fairly, 0 to 5000."],
    ["leases_durable", "flag", "Do leases survive a restart."],
  ]],
];

const shown = (value) => (value === null || value === "" ? "none" : String(value));

function wanted(config, edits) {
  const { durable, ...rest } = { ...config, ...edits };
  for (const [, fields] of FIELDS) {
    for (const [name, kind] of fields) {
      if (["ms", "number", "bytes"].includes(kind) && typeof rest[name] === "string") rest[name] = Number(rest[name]);
      if (kind === "maybe" && typeof rest[name] === "string") rest[name] = rest[name].trim() === "" ? null : Number(rest[name]);
      if (kind === "text" && typeof rest[name] === "string") rest[name] = rest[name].trim() || null;
    }
  }
  return rest;
}

function Field({ name, kind, about, value, onChange, isLocked }) {
  const id = `config-${name}`;
  const change = (event) => onChange(name, kind === "flag" ? event.target.checked : event.target.value);
  let input = html`<input id=${id} type=${kind === "text" ? "text" : "number"} value=${value ?? ""} disabled=${isLocked} onInput=${change} aria-describedby=${`${id}-about`} autocomplete="off" />`;
  if (Array.isArray(kind)) input = html`<select id=${id} value=${value} disabled=${isLocked} onChange=${change} aria-describedby=${`${id}-about`}>${kind.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
  if (kind === "flag") input = html`<input id=${id} type="checkbox" checked=${value} disabled=${isLocked} onChange=${change} aria-describedby=${`${id}-about`} />`;
  return html`<div class=${`field ${kind === "flag" ? "flag-field" : ""}`}><label for=${id}><code>${name}</code></label>${input}<p id=${`${id}-about`} class="faint">${about}</p></div>`;
}

export function Config({ name, state, reload }) {
  const [edits, setEdits] = useState({});
  const [trial, setTrial] = useState(null);
  const target = `topics/${path(name)}`;
  const next = useMemo(() => wanted(state.config, edits), [state.config, edits]);
  const changes = Object.entries(next).filter(([field, value]) => JSON.stringify(value) !== JSON.stringify(state.config[field]));
  const key = JSON.stringify(changes);
  const may = can("admin");
  useEffect(() => {
    setTrial(null);
    if (!changes.length || !may) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      call("PUT", target, { ...next, dry_run: true }, { signal: abort.signal })
        .then((answer) => setTrial({ answer }))
        .catch((error) => error.name !== "AbortError" && setTrial({ error: error.message }));
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [key]);
  const save = async (event) => {
    event.preventDefault();
    const saved = await attempt(() => call("PUT", target, next), `The config of ${name} is saved`);
    if (saved) {
      setEdits({});
      reload();
    }
  };
  const goes = trial?.answer?.would_evict;
  return html`<form class="stack config" onSubmit=${save}>
    ${FIELDS.filter(([title]) => title !== "As a queue" || state.type === "queue").map(([title, fields]) => html`<${Card} title=${title}><div class="body fields">
      ${fields.map(([field, kind, about]) => html`<${Field} key=${field} name=${field} kind=${kind} about=${about} isLocked=${!may}
        value=${field in edits ? edits[field] : state.config[field]} onChange=${(one, value) => setEdits({ ...edits, [one]: value })} />`)}</div><//>`)}
    ${may && changes.length > 0 && html`<section class="card difference" aria-label="What would change" aria-live="polite"><header><h2>What would change</h2></header><div class="body stack">
      <ul>${changes.map(([field, value]) => html`<li><code>${field}</code> <del>${shown(state.config[field])}</del> <span aria-hidden="true">→</span> <ins>${shown(value)}</ins></li>`)}</ul>
      ${trial?.error && html`<p class="trouble">${trial.error}</p>`}
      ${goes?.records > 0 && html`<p class="lost-note"><${Icon} name="warn" /> <span><strong>${plural(goes.records, "record")}</strong> (${bytes(goes.bytes)}) would be lost at once. Readers are told.</span></p>`}
      ${goes?.records === 0 && html`<p class="safe"><${Icon} name="check" /> Nothing is lost by this.</p>`}
      ${trial?.answer?.warnings?.map((one) => html`<p class="warning" key=${one.code + one.field}><${Badge} kind="warn">${one.field}<//> ${one.message}</p>`)}
      <div class="actions"><button class="button" type="button" onClick=${() => setEdits({})}>Discard</button><button class=${`button ${goes?.records ? "danger" : "main"}`} disabled=${!trial?.answer}>Save</button></div>
    </div></section>`}
    ${can("delete") && html`<${DeleteRecords} name=${name} state=${state} reload=${reload} />`}
  </form>`;
}

// Deletes of records: counted by a dry run first, bound to this instance of the topic.
function DeleteRecords({ name, state, reload }) {
  const [before, setBefore] = useState("");
  const [tag, setTag] = useState("");
  const [trial, setTrial] = useState(null);
  const target = `topics/${path(name)}/delete`;
  const count = async () => {
    const body = { epoch: state.epoch };
    if (/^\d+$/.test(before)) body.before_seq = Number(before);
    if (tag) body.match = tag.endsWith("*") ? ["tag", "Glob", tag] : tag;
    const answer = await attempt(() => call("POST", target, { ...body, dry_run: true }));
    if (answer?.deleted === 0) say("No live record is like that.");
    else if (answer) setTrial({ body, answer });
  };
  return html`<${Card} title="Delete records"><div class="body delete-records">
    <label>Below this seq<input inputmode="numeric" value=${before} onInput=${(event) => setBefore(event.target.value)} placeholder=${number(state.head_seq + 1)} /></label>
    <label>With this tag, or a* for a prefix<input value=${tag} onInput=${(event) => setTag(event.target.value)} /></label>
    <button class="button" type="button" disabled=${!tag && !/^\d+$/.test(before)} onClick=${count}>Count them</button>
    ${trial && html`<${Destroy} title="Delete records" name=${name} count=${trial.answer.deleted} size=${trial.answer.deleted_bytes} verb="Delete records"
      act=${() => call("POST", target, trial.body)} onDone=${() => { setTrial(null); reload(); }} onClose=${() => setTrial(null)} />`}
  </div><//>`;
}
