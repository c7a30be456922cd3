/**
 * A client of topics for browsers and node, on fetch and EventSource alone.
 *
 * Every operation of the API with a JSON answer is `client.call(name, given)`, typed by the OpenAPI document. On top are
 * the ones that programs need most: `append`, `send`, `diff`, `consume`, `watch`, `events`.
 *
 * A call is repeated when the server refused it for now (429, 503), and after a broken connection if repeating is
 * harmless. An append carries an idempotency key: it is repeated only within the time for which its topic remembers it.
 */
import { operations } from "./api.js";
/** The server answered with an error. */
export class TopicsError extends Error {
    status;
    code;
    detail;
    retryAfterMs;
    name = "TopicsError";
    constructor(message, status, code, detail, retryAfterMs) {
        super(message);
        this.status = status;
        this.code = code;
        this.detail = detail;
        this.retryAfterMs = retryAfterMs;
    }
}
/** No usable answer: the connection failed, or the time is over. The call may have been carried out. */
export class ConnectionFailed extends Error {
    name = "ConnectionFailed";
}
const BACKOFF_MS = 50;
const BACKOFF_MS_MAX = 2000;
const REFUSED = [429, 503];
const GATEWAY = [502, 503, 504];
const HEARTBEAT_MS = 15000;
const STEADY_MS = 5000; // a stream that lasted so long was a good one
const LONG_POLL_MS = 20000;
export class Topics {
    url;
    #options;
    #fetch;
    constructor(url, options = {}) {
        this.url = String(url).replace(/\/+$/, "");
        const timeoutMs = options.timeoutMs ?? 30000;
        this.#options = { token: "", timeoutMs, retries: 10 + Math.floor(timeoutMs / 1000), ...defined(options) };
        this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    }
    /** Carry an operation out. Path, query and fields of the body are given together, by their names. */
    async call(name, given, signal) {
        const repeats = operations[name][2] && !("if_seq" in given);
        return this.#repeated(name, given, () => Promise.resolve(repeats ? Infinity : 0), signal);
    }
    /** Append records, all or none. Without a key of yours the call gets one, and is never carried out twice. */
    async append(topic, records, options = {}) {
        const key = options.idempotency_key ?? crypto.randomUUID();
        const given = { topic, return_seqs: false, records, ...options, idempotency_key: key, on_mismatch: "refuse" };
        return this.#repeated("append", given, () => this.#window(topic, options));
    }
    /** Append one record. */
    async send(topic, data, options = {}) {
        const { tag, meta, delay_ms, deliver_at, ...rest } = options;
        return this.append(topic, [defined({ data, tag, meta, delay_ms, deliver_at })], rest);
    }
    /** Read once above a cursor; the next one is `next_from_seq` of the answer. */
    async diff(topic, from_seq = 0, options = {}, signal) {
        return this.call("diff", { ...options, topic, from_seq }, signal);
    }
    /** Records and losses above `from_seq`, in order, for ever or up to the head. `isLost` tells them apart. */
    async *consume(topic, options = {}) {
        const { follow = true, signal, from_seq = 0, ...rest } = options;
        const read = { limit: 1000, ...rest, wait_ms: follow ? (rest.wait_ms ?? LONG_POLL_MS) : 0 };
        let at = from_seq;
        while (!signal?.aborted) {
            let diff;
            try {
                diff = await this.diff(topic, at, read, signal);
            }
            catch (error) {
                if (signal?.aborted)
                    return;
                throw error;
            }
            if (diff.tombstone)
                yield { topic, ...diff.tombstone };
            yield* diff.records;
            at = diff.next_from_seq;
            read.epoch = diff.epoch;
            if (diff.caught_up && !follow)
                return;
        }
    }
    /** Follow topics: an async iterator that connects again by itself, misses nothing and repeats nothing. */
    watch(topics, options = {}) {
        const names = [topics].flat();
        const query = { ...options, topics: names.join(",") };
        return new Watch(names, (cursor, signal) => this.#open("/v0/events", { ...query, cursor: cursor ?? options.cursor }, signal), options.heartbeat_ms ?? HEARTBEAT_MS, this.#options.retries);
    }
    /**
     * A native EventSource of topics, with events `record`, `tombstone`, `caught-up`, `topic-deleted` and `stream-error`.
     * Where the client has a token, the stream opens with a ticket, which is good once: an EventSource that is CLOSED has
     * to be opened anew, with its last `lastEventId` as cursor. `watch` does all of that.
     */
    async events(topics, options = {}) {
        const query = { ...options, topics: [topics].flat().join(",") };
        if (this.#options.token)
            query.ticket = (await this.call("give_ticket", {})).ticket;
        return new EventSource(this.url + "/v0/events" + queryOf(query));
    }
    /** All items of a list, page by page: `for await (const topic of client.list("list_topics", {}))`. */
    async *list(name, given) {
        let cursor;
        do {
            const page = await this.call(name, { ...given, cursor });
            for (const value of Object.values(page))
                if (Array.isArray(value))
                    yield* value;
            cursor = page.next_cursor ?? undefined;
        } while (cursor);
    }
    /** For how long the topic remembers keys: so long an append that may have been carried out may be repeated. */
    async #window(topic, options) {
        try {
            return (await this.call("show_topic", { topic, touch: false })).config.idempotency_window_ms ?? 0;
        }
        catch (error) {
            if (!(error instanceof TopicsError) || error.code !== "topic_not_found")
                return 0;
            return options.config?.idempotency_window_ms ?? DEFAULT_WINDOW_MS;
        }
    }
    async #repeated(name, given, windowMs, signal) {
        const started = Date.now();
        const waitMs = "wait_ms" in given ? Number(given.wait_ms ?? 0) : 0;
        let deadline = started + this.#options.timeoutMs + waitMs;
        let inDoubt = false; // it may have been carried out
        for (let tried = 0;; tried++) {
            let failure;
            try {
                return await this.#once(name, given, deadline, signal);
            }
            catch (error) {
                failure = error;
            }
            signal?.throwIfAborted();
            const isRefusal = failure instanceof TopicsError && REFUSED.includes(failure.status) && failure.code !== "";
            const isOpen = failure instanceof ConnectionFailed || (failure instanceof TopicsError && isGateway(failure));
            if (!(isRefusal || isOpen) || tried >= this.#options.retries)
                throw failure;
            if (isOpen && !inDoubt) {
                inDoubt = true;
                deadline = Math.min(deadline, started + (await windowMs()));
            }
            const asked = failure instanceof TopicsError ? failure.retryAfterMs : undefined;
            const pauseMs = asked ?? backoffMs(tried);
            if (Date.now() + pauseMs >= deadline)
                throw failure;
            await pause(pauseMs, signal);
        }
    }
    async #once(name, given, deadline, signal) {
        const [method, path, , inQuery] = operations[name];
        const rest = { ...given };
        const target = path.replace(/\{(\w+)\}/g, (_, part) => {
            const value = String(rest[part] ?? "");
            if (!value)
                throw new TypeError(`${name} needs a ${part}`);
            delete rest[part];
            return encodeURIComponent(value);
        });
        const query = {};
        for (const key of inQuery) {
            query[key] = rest[key];
            delete rest[key];
        }
        const hasBody = method === "POST" || method === "PUT";
        const answer = await this.#send(target + queryOf(query), {
            method,
            headers: this.#headers(hasBody ? { "content-type": "application/json" } : { accept: "application/json" }),
            body: hasBody ? JSON.stringify(rest) : undefined,
            signal: merged(signal, Math.max(0, deadline - Date.now())),
        });
        return answer.json().catch((error) => {
            throw new ConnectionFailed(`${method} ${target}: the answer broke off: ${error}`);
        });
    }
    async #open(path, query, signal) {
        const headers = this.#headers({ accept: "text/event-stream" });
        const answer = await this.#send(path + queryOf(query), { headers, signal });
        return answer.body;
    }
    #headers(more) {
        return this.#options.token ? { ...more, authorization: `Bearer ${this.#options.token}` } : more;
    }
    async #send(target, init) {
        let answer;
        try {
            answer = await this.#fetch(this.url + target, init);
        }
        catch (error) {
            throw new ConnectionFailed(`${init.method ?? "GET"} ${target}: ${error}`, { cause: error });
        }
        if (answer.ok)
            return answer;
        throw await errorOf(answer, `${init.method ?? "GET"} ${target}`);
    }
}
const DEFAULT_WINDOW_MS = 120000; // of a topic that this very append would create
/** Is it a loss, and no record? */
export function isLost(item) {
    return "gap_from" in item;
}
/**
 * The events of a watch. Once connected, it connects again for as long as it takes; it ends with its last topic, and at
 * `close`. An error that will not pass is thrown.
 */
export class Watch {
    open;
    heartbeatMs;
    retries;
    /** Where the watch is: behind the last event handed out. Keep it, and pass it to the next watch. */
    cursor;
    #stop = new AbortController();
    #left; // topics that are not gone
    constructor(topics, open, heartbeatMs, retries) {
        this.open = open;
        this.heartbeatMs = heartbeatMs;
        this.retries = retries;
        this.#left = new Set(topics);
    }
    /** End the loop over this watch, now. */
    close() {
        this.#stop.abort();
    }
    async *[Symbol.asyncIterator]() {
        const stop = this.#stop.signal;
        let failures = 0;
        let hasConnected = false;
        while (!stop.aborted && this.#left.size) {
            const connection = new AbortController();
            const end = () => connection.abort();
            stop.addEventListener("abort", end);
            let openedAt = Infinity;
            try {
                const stream = await this.open(this.cursor, connection.signal);
                openedAt = Date.now();
                hasConnected = true;
                for await (const frame of framesOf(stream, 2 * this.heartbeatMs, end)) {
                    const event = eventOf(frame);
                    if (!event)
                        continue;
                    failures = 0;
                    if (frame.id !== undefined)
                        this.cursor = frame.id;
                    if (event.type === "topic-deleted")
                        this.#left.delete(event.topic);
                    yield event;
                }
            }
            catch (error) {
                if (stop.aborted)
                    return;
                const passes = !(error instanceof TopicsError) || REFUSED.includes(error.status) || error.status >= 500;
                if (!passes || (!hasConnected && failures >= this.retries))
                    throw error;
            }
            finally {
                stop.removeEventListener("abort", end);
                connection.abort();
            }
            failures = Date.now() - openedAt > STEADY_MS ? 0 : failures + 1;
            if (this.#left.size)
                await pause(backoffMs(failures), stop).catch(() => undefined);
        }
    }
}
/** The frames of a stream of server-sent events. After so much silence the stream is ended. */
async function* framesOf(stream, silenceMs, end) {
    let timer = setTimeout(end, silenceMs);
    try {
        const reader = stream.getReader();
        const decoder = new TextDecoder();
        let pending = "";
        let frame = { event: "", data: "", id: undefined };
        for (;;) {
            clearTimeout(timer);
            timer = setTimeout(end, silenceMs);
            const { done, value } = await reader.read();
            if (done)
                return;
            clearTimeout(timer); // its user may take as long as he likes
            pending += decoder.decode(value, { stream: true });
            const lines = pending.split(/\r\n|\n|\r(?!$)/);
            pending = lines.pop();
            for (const line of lines) {
                if (line === "") {
                    if (frame.event || frame.data)
                        yield frame;
                    frame = { event: "", data: "", id: undefined };
                    continue;
                }
                const [, field, text = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
                if (field === "event")
                    frame.event = text;
                else if (field === "data")
                    frame.data += (frame.data && "\n") + text;
                else if (field === "id")
                    frame.id = text;
            }
        }
    }
    catch (error) {
        throw error instanceof TopicsError ? error : new ConnectionFailed(`the stream broke: ${error}`, { cause: error });
    }
    finally {
        clearTimeout(timer);
    }
}
function eventOf(frame) {
    const told = JSON.parse(frame.data || "{}");
    switch (frame.event) {
        case "record":
            return { type: "records", ...told };
        case "tombstone":
            return { type: "lost", ...told };
        case "caught-up":
        case "topic-deleted":
            return { type: frame.event, ...told };
        case "stream-error":
            if (told.code === 429)
                return undefined; // held back for now; nothing is to be done
            throw new TopicsError(`the stream ended: ${told.code} ${told.error}`, told.code, String(told.error), told, undefined);
        default:
            return undefined;
    }
}
async function errorOf(answer, what) {
    const text = await answer.text().catch(() => "");
    let body = {};
    try {
        body = JSON.parse(text).error ?? {};
    }
    catch {
        // not of this API: a proxy
    }
    const seconds = Number(answer.headers.get("retry-after") ?? NaN);
    const asked = body.detail?.retry_after_ms ?? (Number.isFinite(seconds) ? seconds * 1000 : undefined);
    const message = `${what}: ${answer.status} ${body.code ?? ""}: ${body.message ?? answer.statusText}`;
    return new TopicsError(message, answer.status, body.code ?? "", body.detail ?? {}, asked);
}
/** A proxy's answer leaves open whether the server has carried the call out. */
function isGateway(error) {
    return GATEWAY.includes(error.status) && error.code === "";
}
function queryOf(query) {
    const pairs = [];
    for (const [name, value] of Object.entries(query)) {
        if (value === undefined || value === null)
            continue;
        if (Array.isArray(value) && name !== "filter")
            pairs.push(...value.map((one) => [name, String(one)]));
        else
            pairs.push([name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
    }
    return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}
function backoffMs(tried) {
    return Math.min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** Math.min(tried, 30)) * (0.5 + Math.random() / 2);
}
function defined(given) {
    return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}
function merged(signal, timeoutMs) {
    const late = AbortSignal.timeout(timeoutMs);
    if (!signal)
        return late;
    if ("any" in AbortSignal)
        return AbortSignal.any([signal, late]);
    return signal;
}
function pause(ms, signal) {
    return new Promise((resolve, reject) => {
        if (signal?.aborted)
            return reject(signal.reason);
        const end = () => {
            clearTimeout(timer);
            reject(signal.reason);
        };
        const timer = setTimeout(() => {
            signal?.removeEventListener("abort", end);
            resolve();
        }, ms);
        signal?.addEventListener("abort", end, { once: true });
    });
}
