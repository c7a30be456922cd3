// The server: calls, streams, the key. A key goes into a header, never into a URL, and stays in this tab.
import { signal } from "./html.js";
import { parse } from "./format.js";

export const BASE = new URL("v0/", document.baseURI).href;
const KEPT = "topics.key";
const RETRY_MS = [300, 600, 1200, 2500, 5000];

export const me = signal(null); // what the key may do; null until it is known
export const needsKey = signal(""); // why a key is asked for; empty: it is not
export const isDown = signal(false); // the server cannot be reached, or is not ready
export const lastAct = signal(null); // the last call that changed something

let key = sessionStorage.getItem(KEPT) || "";
export const hasKey = () => key !== "";
export const can = (...scopes) => me.value !== null && scopes.every((scope) => me.value.scopes.includes(scope));
export const isWhole = () => me.value !== null && me.value.prefixes.length === 0;

export class Refused extends Error {
  constructor(status, { code = "unknown", message = "", detail = {} } = {}) {
    super(message || `the server answered ${status}`);
    Object.assign(this, { status, code, detail: detail || {} });
  }
}

export async function useKey(text) {
  key = text.trim();
  if (key) sessionStorage.setItem(KEPT, key);
  else sessionStorage.removeItem(KEPT);
  needsKey.value = "";
  await whoAmI();
}

export async function whoAmI() {
  me.value = await get("me");
}

const headers = (more = {}) => (key ? { authorization: `Bearer ${key}`, ...more } : more);
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
export const query = (fields) => {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

const isAct = (method, target, text) => method !== "GET" && !target.endsWith("/diff") && !text?.endsWith('"dry_run":true}');

// A call that gives the text of its answer. `body`: an object, or JSON as text.
export async function ask(method, target, body, { signal: abort, accept } = {}) {
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  const more = { ...(text === undefined ? {} : { "content-type": "application/json" }), ...(accept ? { accept } : {}) };
  let answer;
  try {
    const options = { method, headers: headers(more), body: text, signal: abort, cache: "no-store" };
    answer = await fetch(BASE + target, options);
  } catch (error) {
    if (error.name !== "AbortError") isDown.value = true;
    throw error;
  }
  const said = await answer.text();
  if (answer.status === 503) isDown.value = true;
  else isDown.value = false;
  if (answer.ok) {
    if (isAct(method, target, text)) lastAct.value = { method, target, body: text };
    return said;
  }
  let refusal = {};
  try {
    refusal = JSON.parse(said).error;
  } catch {
    // not ours: a proxy's
  }
  if (answer.status === 401) needsKey.value = key ? "This key is not known to the server." : "This server needs a key.";
  throw new Refused(answer.status, refusal);
}

// `isExact`: the answer holds records, whose numbers keep their spelling.
export const call = async (method, target, body, { isExact = false, ...options } = {}) =>
  (isExact ? parse : JSON.parse)(await ask(method, target, body, options));
export const get = (target, options) => call("GET", target, undefined, options);

// A stream of events that outlives the server: it goes on behind the last id. Gives a function that ends it.
export function follow(target, { onEvent, onState = () => {} }) {
  const abort = new AbortController();
  let id = "";
  let tries = 0;
  const run = async () => {
    while (!abort.signal.aborted) {
      try {
        const more = { accept: "text/event-stream", ...(id ? { "last-event-id": id } : {}) };
        const answer = await fetch(BASE + target, { headers: headers(more), signal: abort.signal, cache: "no-store" });
        if (!answer.ok) {
          const refusal = await answer.json().catch(() => ({}));
          if (answer.status < 500 && answer.status !== 429) {
            onState("ended", refusal.error?.message || `the server answered ${answer.status}`);
            return;
          }
          throw new Error("try again");
        }
        onState("open", "");
        tries = 0;
        await read(answer.body, (event) => {
          if (event.id !== undefined) id = event.id;
          onEvent(event);
        });
      } catch {
        // the server went, or the page did
      }
      if (abort.signal.aborted) return;
      onState("waiting", "");
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
      tries += 1;
    }
  };
  run();
  return () => abort.abort();
}

async function read(body, tell) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const text of block.split("\n")) {
        const at = text.indexOf(":");
        if (at > 0) event[text.slice(0, at)] = text.slice(at + 1).replace(/^ /, "");
      }
      if (event.event) tell({ kind: event.event, id: event.id, data: parse(event.data) });
    }
  }
}
