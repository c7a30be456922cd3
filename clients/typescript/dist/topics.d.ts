/**
 * A client of topics for browsers and node, on fetch and EventSource alone.
 *
 * Every operation of the API with a JSON answer is `client.call(name, given)`, typed by the OpenAPI document. On top are
 * the ones that programs need most: `append`, `send`, `diff`, `consume`, `watch`, `events`.
 *
 * A call is repeated when the server refused it for now (429, 503), and after a broken connection if repeating is
 * harmless. An append carries an idempotency key: it is repeated only within the time for which its topic remembers it.
 */
import { type Operations } from "./api.js";
import type * as api from "./api.js";
export type { Operations } from "./api.js";
export type { api };
/** A record as readers get it. */
export type TopicRecord<T = any> = Omit<api.Record, "data"> & {
    data: T;
};
/** Seqs that a reader missed, and why. Consumers and watches hand it out in order. */
export type Lost = Pick<api.Tombstone, "gap_from" | "gap_to" | "reason" | "earliest_seq" | "head_seq"> & {
    topic: string;
};
/** What happens in topics that are watched. */
export type WatchEvent<T = any> = {
    type: "records";
    topic: string;
    records: TopicRecord<T>[];
    from_seq: number;
    to_seq: number;
    head_seq: number;
} | ({
    type: "lost";
} & Lost) | {
    type: "caught-up";
    topic: string;
    head_seq: number;
} | {
    type: "topic-deleted";
    topic: string;
    head_seq: number;
    reason: string;
};
export interface ClientOptions {
    /** The key. It goes into a header; streams of `events` get a ticket in its place. */
    token?: string;
    /** The time for a call with all its repeats; the wait of a long poll comes on top. 30000 unless given. */
    timeoutMs?: number;
    /** How often a call is repeated at most; if it is not given, the time decides. */
    retries?: number;
    /** In place of the global fetch. */
    fetch?: typeof fetch;
}
export interface AppendOptions {
    node?: string;
    idempotency_key?: string;
    create?: boolean;
    config?: api.Config;
}
export interface ConsumeOptions extends Omit<api.DiffRequest, "from_ts"> {
    /** False: up to the head, then the loop ends. */
    follow?: boolean;
    signal?: AbortSignal;
}
export interface WatchOptions {
    /** Start above this seq in every topic; 0 is the beginning. */
    from_seq?: number;
    /** Start with what comes from now on. */
    tail?: boolean;
    /** `cursor` of an earlier watch: go on where that was. It decides alone in the topics that it names. */
    cursor?: string;
    node?: string | string[];
    filter?: string | [string, string, string];
    limit?: number;
    include_tags?: boolean;
    include_data?: boolean;
    include_meta?: boolean;
    heartbeat_ms?: number;
}
/** The server answered with an error. */
export declare class TopicsError extends Error {
    readonly status: number;
    readonly code: string;
    readonly detail: {
        [key: string]: any;
    };
    readonly retryAfterMs: number | undefined;
    name: string;
    constructor(message: string, status: number, code: string, detail: {
        [key: string]: any;
    }, retryAfterMs: number | undefined);
}
/** No usable answer: the connection failed, or the time is over. The call may have been carried out. */
export declare class ConnectionFailed extends Error {
    name: string;
}
export declare class Topics {
    #private;
    readonly url: string;
    constructor(url: string | URL, options?: ClientOptions);
    /** Carry an operation out. Path, query and fields of the body are given together, by their names. */
    call<K extends keyof Operations>(name: K, given: Operations[K]["given"], signal?: AbortSignal): Promise<Operations[K]["result"]>;
    /** Append records, all or none. Without a key of yours the call gets one, and is never carried out twice. */
    append(topic: string, records: api.RecordIn[], options?: AppendOptions): Promise<api.Written>;
    /** Append one record. */
    send(topic: string, data: any, options?: AppendOptions & Omit<api.RecordIn, "data">): Promise<api.Written>;
    /** Read once above a cursor; the next one is `next_from_seq` of the answer. */
    diff(topic: string, from_seq?: number, options?: api.DiffRequest, signal?: AbortSignal): Promise<api.Diff>;
    /** Records and losses above `from_seq`, in order, for ever or up to the head. `isLost` tells them apart. */
    consume<T = any>(topic: string, options?: ConsumeOptions): AsyncGenerator<TopicRecord<T> | Lost, void>;
    /** Follow topics: an async iterator that connects again by itself, misses nothing and repeats nothing. */
    watch<T = any>(topics: string | string[], options?: WatchOptions): Watch<T>;
    /**
     * A native EventSource of topics, with events `record`, `tombstone`, `caught-up`, `topic-deleted` and `stream-error`.
     * Where the client has a token, the stream opens with a ticket, which is good once: an EventSource that is CLOSED has
     * to be opened anew, with its last `lastEventId` as cursor. `watch` does all of that.
     */
    events(topics: string | string[], options?: WatchOptions): Promise<EventSource>;
    /** All items of a list, page by page: `for await (const topic of client.list("list_topics", {}))`. */
    list<K extends Lists>(name: K, given: Operations[K]["given"]): AsyncGenerator<Item<K>, void>;
}
type Lists = "list_topics" | "list_routers" | "list_cursors" | "list_leases" | "list_connections";
type Item<K extends Lists> = Extract<Operations[K]["result"][keyof Operations[K]["result"]], any[]>[number];
/** Is it a loss, and no record? */
export declare function isLost(item: TopicRecord | Lost): item is Lost;
/**
 * The events of a watch. Once connected, it connects again for as long as it takes; it ends with its last topic, and at
 * `close`. An error that will not pass is thrown.
 */
export declare class Watch<T = any> implements AsyncIterable<WatchEvent<T>> {
    #private;
    private readonly open;
    private readonly heartbeatMs;
    private readonly retries;
    /** Where the watch is: behind the last event handed out. Keep it, and pass it to the next watch. */
    cursor: string | undefined;
    constructor(topics: string[], open: (cursor: string | undefined, signal: AbortSignal) => Promise<ReadableStream<Uint8Array>>, heartbeatMs: number, retries: number);
    /** End the loop over this watch, now. */
    close(): void;
    [Symbol.asyncIterator](): AsyncGenerator<WatchEvent<T>, void>;
}
