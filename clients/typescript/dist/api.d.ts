/** The body of an ack. */
export type AckRequest = {
    node: string;
    seqs: (number)[];
    lease_ids?: (string)[];
};
/** The body of a backup; an empty one stands for {}. */
export type BackupRequest = {
    have?: (string)[];
    follow?: boolean;
};
/** The topics whose names begin with `prefix`; or, with `topic`, the one of this name. */
export type BranchShown = {
    topics: number;
    count: number;
    bytes: number;
    written_rate: number;
    read_rate: number;
    lost_total: number;
    expired_total: number;
    deleted_total: number;
    ready: number;
    prefix: string;
    topic: boolean;
};
/** The checkpoints of this process. `log_bytes` is the log since the last; the next is due at `due_bytes`, or `due_ms` after it if anything has changed. */
export type CheckpointsShown = {
    taken: number;
    failed: number;
    running: boolean;
    last_ts: number | null;
    last_ms: number | null;
    failure: string | null;
    log_bytes: number;
    due_bytes: number;
    due_ms: number;
};
export type ClaimPerformance = {
    server_total_ms: number;
    throttle_wait_ms: number;
};
/** The body of a claim. */
export type ClaimRequest = {
    node: string;
    max?: number;
    lease_ms?: number | null;
};
/** The fields of a config body. UNSET = left out; None is allowed only where it means the same. */
export type Config = {
    type?: "log" | "queue";
    ttl_ms?: number;
    cap_records?: number;
    cap_bytes?: number;
    discard?: "old" | "reject";
    durable?: boolean;
    durability?: "disk" | "ephemeral" | "fsync" | "memory" | null;
    priority?: number | null;
    auto_priority?: boolean;
    auto_create?: boolean;
    idempotency_window_ms?: number;
    dedupe_node?: boolean;
    lease_ms?: number;
    claim_jitter_ms?: number;
    max_deliveries?: number;
    dead_letter?: string | null;
    leases_durable?: boolean;
};
/** Something about a config that its author should know. */
export type ConfigWarning = {
    code: "cap_below_batch" | "dead_letter_missing" | "queue_discards_old" | "ttl_below_lease" | "unknown_field" | "window_above_ttl";
    field: string;
    message: string;
};
export type ConnectionGone = {
    deleted: boolean;
    performance: Performance;
};
export type ConnectionList = {
    connections: (ConnectionListed)[];
    next_cursor?: string;
    performance: Performance;
};
/** A stream or a socket. `key` is the name of its key, `lag` what it has not been sent of its topics. */
export type ConnectionListed = {
    id: string;
    kind: "events" | "watch" | "work" | "ws";
    key: string | null;
    remote: string;
    topics: (string)[];
    lag: number;
    held_bytes: number;
    age_ms: number;
};
/** The named cursors of a topic; `max_lag` is 0 if there are none. */
export type CursorCounts = {
    count: number;
    max_lag: number;
};
export type CursorGone = {
    topic: string;
    name: string;
    deleted: boolean;
    performance: Performance;
};
export type CursorList = {
    topic: string;
    cursors: (CursorListed)[];
    next_cursor?: string;
    performance: Performance;
};
export type CursorListed = {
    topic: string;
    name: string;
    seq: number;
    epoch: number;
    lag: number;
    lost: number;
    seconds_until_loss: number | null;
    updated_ts: number;
};
/** The body of PUT cursor. `if_seq` null: there must be none. */
export type CursorRequest = {
    seq: number;
    epoch?: number | null;
    if_seq?: number | null;
};
/** `created` in the answer to a PUT. */
export type CursorShown = {
    topic: string;
    name: string;
    seq: number;
    epoch: number;
    lag: number;
    lost: number;
    seconds_until_loss: number | null;
    updated_ts: number;
    created?: boolean;
    performance: Performance;
};
/** The body of a delete. */
export type DeleteRequest = {
    before_seq?: number | null;
    match?: string | [any, any, string] | null;
    epoch?: number | null;
    dry_run?: boolean;
};
export type Diagnosis = {
    findings: (Finding)[];
    performance: Performance;
};
export type Diff = {
    topic: string;
    epoch: number;
    records: (Record)[];
    next_from_seq: number;
    head_seq: number;
    earliest_seq: number;
    caught_up: boolean;
    tombstone: Tombstone | null;
    lag: number;
    performance: DiffPerformance;
};
export type DiffPerformance = {
    server_total_ms: number;
    records_scanned: number;
    throttle_wait_ms: number;
};
/** The body of a diff. */
export type DiffRequest = {
    from_seq?: number;
    limit?: number;
    node?: string | (string)[] | null;
    include_tags?: boolean;
    include_meta?: boolean;
    wait_ms?: number;
    max_batch_bytes?: number;
    epoch?: number | null;
    from_ts?: number | null;
    filter?: string | [any, any, string] | null;
};
/** The disk of the data directory; `seconds_until_full` if it goes on filling as in the last hour. */
export type DiskShown = {
    free_bytes: number | null;
    total_bytes: number | null;
    seconds_until_full: number | null;
};
export type Error = {
    error: ErrorBody;
};
export type ErrorBody = {
    code: string;
    message: string;
    detail?: {
        [key: string]: any;
    };
};
/** Requests that were answered with an error. */
export type Errors = {
    "4xx": number;
    "5xx": number;
};
/** Live records that a config would evict at once. */
export type Evicting = {
    records: number;
    bytes: number;
};
/** The body of an extend. */
export type ExtendRequest = {
    node: string;
    seqs: (number)[];
    lease_ids?: (string)[];
    lease_ms: number;
};
/** What was looked at, how it is, and what to do about it. */
export type Finding = {
    level: "fault" | "note" | "ok";
    subject: string;
    said: string;
    remedy?: string;
    topic?: string;
};
export type Health = {
    status: "ok";
    version: string;
    uptime_ms: number;
};
/** A job as its worker gets it. `data` and `meta` are the JSON texts that were written. */
export type Job = {
    $seq: number;
    lease_id: string;
    deadline: number;
    $ts: number;
    deliveries: number;
    data: any;
    $tag?: string | null;
    meta?: any;
};
/** `dead`: what waits in the dead_letter topic, from whatever queue; null if there is none that the key may name. */
export type JobCounts = {
    ready: number;
    in_flight: number;
    delayed: number;
    dead: number | null;
    paused: boolean;
};
export type JobsAcked = {
    topic: string;
    acked: number;
    skipped: (number)[];
    ready: number;
    in_flight: number;
    performance: SyncPerformance;
};
export type JobsClaimed = {
    topic: string;
    claimed: (Job)[];
    count: number;
    ready: number;
    paused: boolean;
    performance: ClaimPerformance;
};
/** `moved` are in dest now; `skipped` are held by a worker, gone, or had no room there. */
export type JobsMoved = {
    topic: string;
    dest: string;
    moved: (number)[];
    skipped: (number)[];
    performance: Performance;
};
export type JobsNacked = {
    topic: string;
    nacked: number;
    skipped: (number)[];
    ready: number;
    in_flight: number;
    performance: Performance;
};
export type LeaseList = {
    topic: string;
    leases: (LeaseView)[];
    next_cursor?: string;
    performance: Performance;
};
/** Who holds a job, and until when. The lease's id is its holder's. */
export type LeaseView = {
    $seq: number;
    node: string;
    deadline: number;
    deliveries: number;
};
export type LeasesExtended = {
    topic: string;
    extended: number;
    skipped: (number)[];
    deadlines: {
        [key: string]: number;
    };
    performance: Performance;
};
/** `dry_run` and `redriven_bytes` are in the answer to a dry run. */
export type LettersRedriven = {
    topic: string;
    dead_letter: string;
    redriven: number;
    remaining: number;
    dry_run?: true;
    redriven_bytes?: number;
    performance: Performance;
};
/** Which seqs above `after` and up to `last` are live, as runs; what else was lost is in `lost`, or deleted. */
export type LiveRuns = {
    topic: string;
    epoch: number;
    head_seq: number;
    earliest_seq: number;
    after: number;
    last: number;
    live: ((number)[])[];
    lost: (Tombstone)[];
    performance: Performance;
};
/** The newest losses of all topics; and, of each topic, the cursor that will lose next, if that is foreseen. */
export type LossFeed = {
    losses: (LossFound)[];
    endangered: (CursorListed)[];
    performance: Performance;
};
/** A loss of some topic. `cursors` names the named cursors that stand below its end, at most 20 of `cursors_hit`. */
export type LossFound = {
    gap_from: number;
    gap_to: number;
    reason: "cap" | "mixed" | "source_trim" | "ttl";
    ts: number;
    topic: string;
    cursors: (string)[];
    cursors_hit: number;
};
export type LossList = {
    topic: string;
    losses: (LossShown)[];
    performance: Performance;
};
/** A range that was lost, and when; some of its seqs may have been deleted before. */
export type LossShown = {
    gap_from: number;
    gap_to: number;
    reason: "cap" | "mixed" | "source_trim" | "ttl";
    ts: number;
};
/** A key, to its holder. No prefixes: any name. `name` is null for a key of the environment, and without auth. */
export type Me = {
    name: string | null;
    scopes: (string)[];
    prefixes: (string)[];
    performance: Performance;
};
/** What the process has; what is held for connections, and at most; what is kept (LM14), at most, and by a write. */
export type MemoryShown = {
    resident_bytes: number;
    held_bytes: number;
    held_bytes_max: number;
    kept_bytes: number;
    kept_bytes_max: number;
    write_bytes_max: number;
};
/** The JSON form. */
export type Metrics = {
    topics: number;
    topics_ephemeral: number;
    topics_memory: number;
    topics_disk: number;
    topics_fsync: number;
    routers: number;
    records_live: number;
    bytes_live: number;
    queue_topics: number;
    queue_leases_in_flight: number;
    sse_connections: number;
    watch_sessions: number;
    ready: boolean;
    replay_progress: number;
    uptime_ms: number;
    wal: WalMetrics;
};
/** The body of a move. */
export type MoveRequest = {
    seqs: (number)[];
    dest: string;
};
/** The body of a nack. */
export type NackRequest = {
    node: string;
    seqs: (number)[];
    lease_ids?: (string)[];
    delay_ms?: number;
};
/** The body of a request that says all in its path; an empty one stands for {}. */
export type NoFields = {};
/** Times in milliseconds. */
export type Performance = {
    server_total_ms: number;
};
/** The jobs of a queue: live ones without lease and delay, those under a lease, those moved away, those delayed. */
export type QueueCounts = {
    ready: number;
    in_flight: number;
    dead_lettered: number;
    delayed: number;
};
export type QueuePaused = {
    topic: string;
    paused: boolean;
    performance: Performance;
};
export type Ready = {
    status: "ready";
    wal_replay_complete: boolean;
    topics: number;
};
/** A record as readers get it. `data` and `meta` are the JSON texts that were written. */
export type Record = {
    $seq: number;
    $ts: number;
    $node?: string | null;
    $tag?: string | null;
    data?: any;
    meta?: any;
};
/** One record of a write. `meta` is empty or `null` when there is none. The last two are for jobs of a queue. */
export type RecordIn = {
    data: any;
    tag?: string | null;
    node?: string | null;
    meta?: {
        [key: string]: any;
    } | null;
    delay_ms?: number;
    deliver_at?: number;
};
export type RecordShown = {
    topic: string;
    epoch: number;
    record: Record;
    performance: Performance;
};
/** `dry_run` and `deleted_bytes` are in the answer to a dry run. */
export type RecordsDeleted = {
    topic: string;
    deleted: number;
    earliest_seq: number;
    head_seq: number;
    count: number;
    bytes: number;
    dry_run?: true;
    deleted_bytes?: number;
    performance: SyncPerformance;
};
/** The body of a redrive. */
export type RedriveRequest = {
    match?: string | [any, any, string] | null;
    max?: number;
    dry_run?: boolean;
};
/** A router in a list; from `preserve_node` on only with `detail`. */
export type RouterDetailed = {
    router: string;
    source: string;
    dest: string;
    guarantee: "at_least_once" | "exactly_once";
    forwarded_total: number;
    preserve_node?: boolean;
    preserve_tag?: boolean;
    filter?: (string)[] | null;
    allow_cycle?: boolean;
    lag?: number;
    state?: "blocked" | "running";
    blocked_by?: string;
};
export type RouterGone = {
    router: string;
    deleted: boolean;
    performance: Performance;
};
export type RouterList = {
    routers: (RouterDetailed)[];
    next_cursor?: string;
    performance: Performance;
};
/** The body of PUT router. */
export type RouterRequest = {
    source: string;
    dest: string;
    preserve_node?: boolean;
    preserve_tag?: boolean;
    create_dest?: boolean;
    filter?: string | [any, any, string] | null;
    allow_cycle?: boolean;
    guarantee?: "at_least_once" | "exactly_once";
};
/** `created` is in the answer to a PUT; total, lag, state and what it is blocked by are in that to a GET. */
export type RouterShown = {
    router: string;
    created?: boolean;
    source: string;
    dest: string;
    preserve_node: boolean;
    preserve_tag: boolean;
    filter: (string)[] | null;
    allow_cycle: boolean;
    guarantee: "at_least_once" | "exactly_once";
    forwarded_total?: number;
    lag?: number;
    state?: "blocked" | "running";
    blocked_by?: string;
    performance: Performance;
};
/** What happened in one interval, which ended at `ts`, and how things stood then. Times are of requests that did not wait by their client's wish, null if there were none. `pressure` is the highest. */
export type Sample = {
    ts: number;
    written: number;
    read: number;
    delivered: number;
    requests: number;
    errors: Errors;
    p50_ms: number | null;
    p99_ms: number | null;
    pressure: number;
    memory_bytes: number;
    disk_free_bytes: number | null;
    lost: number;
};
export type ServerShown = {
    version: string;
    python: string;
    uptime_ms: number;
    started_ts: number;
    settings: (SettingShown)[];
    checkpoints: CheckpointsShown;
    disk: DiskShown;
    memory: MemoryShown;
    performance: Performance;
};
/** A setting: its value, null if that is a secret, and where it comes from: a variable, `default` or `given`. */
export type SettingShown = {
    name: string;
    variable: string;
    value: any;
    default: any;
    origin: string;
    secret: boolean;
    meaning: string;
};
/** What happened, the oldest sample first. */
export type Stats = {
    interval_ms: number;
    samples: (Sample)[];
    performance: Performance;
};
/** Sums over topics; rates are records per second, of the last 60 s. */
export type SumsShown = {
    topics: number;
    count: number;
    bytes: number;
    written_rate: number;
    read_rate: number;
    lost_total: number;
    expired_total: number;
    deleted_total: number;
    ready: number;
};
/** Of a delete: `fsync_ms` is 0.0 for every class but fsync. */
export type SyncPerformance = {
    server_total_ms: number;
    fsync_ms: number;
};
/** `expires_ts` in milliseconds of the epoch. */
export type TicketGiven = {
    ticket: string;
    expires_ts: number;
    performance: Performance;
};
/** When records were written: of each seq that was asked for, the first live one at or above it. */
export type TimeList = {
    topic: string;
    times: (TimeShown)[];
    performance: Performance;
};
export type TimeShown = {
    seq: number;
    ts: number;
};
/** A range that a reader missed: `gap_from`..`gap_to`, inclusive. */
export type Tombstone = {
    gap_from: number;
    gap_to: number;
    reason: "cap" | "from_seq_too_old" | "mixed" | "recreated" | "source_trim" | "ttl";
    missed_estimate: number;
    earliest_seq: number;
    head_seq: number;
};
/** The 17 fields of a topic's config, resolved and clamped. `dead_letter` and `priority` may be null. */
export type TopicConfig = {
    type?: "log" | "queue";
    ttl_ms?: number;
    cap_records?: number;
    cap_bytes?: number;
    discard?: "old" | "reject";
    durable?: boolean;
    durability?: "disk" | "ephemeral" | "fsync" | "memory";
    priority?: number | null;
    auto_priority?: boolean;
    auto_create?: boolean;
    idempotency_window_ms?: number;
    dedupe_node?: boolean;
    lease_ms?: number;
    claim_jitter_ms?: number;
    max_deliveries?: number;
    dead_letter?: string | null;
    leases_durable?: boolean;
};
/** A topic in a list; from `type` on only with `detail`. Rates are records per second, of the last 60 s. */
export type TopicDetailed = {
    topic: string;
    head_seq: number;
    earliest_seq: number;
    count: number;
    bytes: number;
    durable: boolean;
    effective_priority: number;
    epoch?: number;
    type?: "log" | "queue";
    class?: "disk" | "ephemeral" | "fsync" | "memory";
    written_rate?: number;
    read_rate?: number;
    oldest_ts?: number | null;
    newest_ts?: number | null;
    lost_total?: number;
    deleted_total?: number;
    queue?: JobCounts;
    cursors?: CursorCounts;
    memory_bytes?: number;
};
export type TopicGone = {
    topic: string;
    deleted: boolean;
    routers_removed: (string)[];
    performance: Performance;
};
export type TopicList = {
    topics: (TopicDetailed)[];
    next_cursor?: string;
    performance: Performance;
};
/** `dry_run` and `would_evict` are in the answer to a dry run, `warnings` only if there are some. */
export type TopicPut = {
    topic: string;
    created: boolean;
    config: TopicConfig;
    warnings?: (ConfigWarning)[];
    dry_run?: true;
    would_evict?: Evicting;
    performance: Performance;
};
/** The body of PUT topic: a config, and whether to say only what it would do. */
export type TopicRequest = {
    type?: "log" | "queue";
    ttl_ms?: number;
    cap_records?: number;
    cap_bytes?: number;
    discard?: "old" | "reject";
    durable?: boolean;
    durability?: "disk" | "ephemeral" | "fsync" | "memory" | null;
    priority?: number | null;
    auto_priority?: boolean;
    auto_create?: boolean;
    idempotency_window_ms?: number;
    dedupe_node?: boolean;
    lease_ms?: number;
    claim_jitter_ms?: number;
    max_deliveries?: number;
    dead_letter?: string | null;
    leases_durable?: boolean;
    dry_run?: boolean;
};
export type TopicShown = {
    topic: string;
    epoch: number;
    type: "log" | "queue";
    head_seq: number;
    earliest_seq: number;
    next_seq: number;
    count: number;
    bytes: number;
    config: TopicConfig;
    effective_priority: number;
    last_write_ts: number | null;
    last_read_ts: number | null;
    queue?: QueueCounts;
    written_total: number;
    lost_total: number;
    expired_total: number;
    deleted_total: number;
    seconds_until_loss: number | null;
    paused?: boolean;
    performance: Performance;
};
/** One step of the tree of names, below a prefix. `total` is of all that is below it, whatever the page. */
export type Tree = {
    prefix: string;
    total: SumsShown;
    branches: (BranchShown)[];
    next_cursor?: string;
    performance: Performance;
};
/** The log since the start. */
export type WalMetrics = {
    fsyncs: number;
    frames: number;
    batches: number;
    bytes_written: number;
    rotations: number;
    queue_depth: number;
    queue_depth_peak: number;
    submit_full_total: number;
    read_only: boolean;
    fsync_count: number;
    fsync_micros_total: number;
};
/** The body of POST /v0/watch. */
export type WatchRequest = {
    topics: {
        [key: string]: WatchStart;
    };
    node?: string | (string)[] | null;
    limit?: number;
    max_batch_bytes?: number;
    heartbeat_ms?: number;
    include_meta?: boolean;
    include_tags?: boolean;
    include_data?: boolean;
    consistency?: "eventual" | "strong";
    cursor?: string | null;
    filter?: string | [any, any, string] | null;
};
/** Where to start in a topic. */
export type WatchStart = {
    from_seq?: number;
    tail?: boolean;
};
/** Where a session starts in a topic. */
export type WatchedTopic = {
    epoch: number;
    from_seq: number;
    head_seq: number;
    earliest_seq: number;
};
export type Watching = {
    wid: string;
    stream_url: string;
    session_ttl_ms: number;
    topics: {
        [key: string]: WatchedTopic;
    };
    performance: Performance;
};
/** All fields of a write. */
export type Write = {
    records: (RecordIn)[];
    node?: string | null;
    idempotency_key?: string | null;
    create?: boolean | null;
    config?: Config | null;
    disable_backpressure?: boolean;
    on_mismatch?: "refuse";
};
export type WritePerformance = {
    server_total_ms: number;
    wal_append_ms: number;
    fsync_ms: number;
    throttle_wait_ms: number;
};
export type Written = {
    topic: string;
    first_seq: number;
    last_seq: number;
    seqs?: (number)[];
    head_seq: number;
    count: number;
    created: boolean;
    deduped: boolean;
    mismatch?: true;
    warnings?: (ConfigWarning)[];
    performance: WritePerformance;
};
/** What each operation takes, and what it answers. */
export interface Operations {
    /** Complete jobs */
    ack: {
        given: {
            topic: string;
        } & AckRequest;
        result: JobsAcked;
    };
    /** Append records */
    append: {
        given: {
            topic: string;
            return_seqs?: boolean;
        } & Write;
        result: Written;
    };
    /** Lease jobs */
    claim: {
        given: {
            topic: string;
        } & ClaimRequest;
        result: JobsClaimed;
    };
    /** End a stream or a socket */
    close_connection: {
        given: {
            id: string;
        };
        result: ConnectionGone;
    };
    /** Create a watch session */
    create_session: {
        given: {
            lenient?: boolean;
        } & WatchRequest;
        result: Watching;
    };
    /** Delete a named cursor */
    delete_cursor: {
        given: {
            topic: string;
            cursor: string;
        };
        result: CursorGone;
    };
    /** Delete records */
    delete_records: {
        given: {
            topic: string;
        } & DeleteRequest;
        result: RecordsDeleted;
    };
    /** Delete a router */
    delete_router: {
        given: {
            router: string;
        };
        result: RouterGone;
    };
    /** Delete a topic and the routers that touch it */
    delete_topic: {
        given: {
            topic: string;
            if_empty?: boolean;
            epoch?: number;
        };
        result: TopicGone;
    };
    /** What is worth a look, with the remedy */
    diagnose: {
        given: {};
        result: Diagnosis;
    };
    /** Read above a cursor */
    diff: {
        given: {
            topic: string;
        } & DiffRequest;
        result: Diff;
    };
    /** Move lease deadlines */
    extend: {
        given: {
            topic: string;
        } & ExtendRequest;
        result: LeasesExtended;
    };
    /** Read above a cursor, with a query string */
    get_diff: {
        given: {
            topic: string;
            from_seq?: number;
            epoch?: number;
            from_ts?: number;
            limit?: number;
            wait_ms?: number;
            max_batch_bytes?: number;
            node?: string;
            filter?: string;
            include_tags?: boolean;
            include_meta?: boolean;
        };
        result: Diff;
    };
    /** Get a ticket */
    give_ticket: {
        given: NoFields;
        result: TicketGiven;
    };
    /** Is the process alive */
    health: {
        given: {};
        result: Health;
    };
    /** What was lost of all topics, the newest first */
    list_all_losses: {
        given: {
            limit?: number;
        };
        result: LossFeed;
    };
    /** List who is connected, in pages */
    list_connections: {
        given: {
            page_size?: number;
            cursor?: string;
        };
        result: ConnectionList;
    };
    /** List named cursors, in pages */
    list_cursors: {
        given: {
            topic: string;
            page_size?: number;
            cursor?: string;
        };
        result: CursorList;
    };
    /** List who holds which jobs, in pages */
    list_leases: {
        given: {
            topic: string;
            page_size?: number;
            cursor?: string;
        };
        result: LeaseList;
    };
    /** What was lost, the newest first */
    list_losses: {
        given: {
            topic: string;
            limit?: number;
        };
        result: LossList;
    };
    /** List routers, in pages */
    list_routers: {
        given: {
            prefix?: string;
            page_size?: number;
            cursor?: string;
            source?: string;
            dest?: string;
            detail?: boolean;
        };
        result: RouterList;
    };
    /** When records were written */
    list_times: {
        given: {
            topic: string;
            seqs?: string;
        };
        result: TimeList;
    };
    /** List topics, in pages */
    list_topics: {
        given: {
            prefix?: string;
            page_size?: number;
            cursor?: string;
            touch?: boolean;
            epochs?: boolean;
            detail?: boolean;
            contains?: string;
            type?: "log" | "queue";
            class?: "ephemeral" | "memory" | "disk" | "fsync";
            offset?: number;
            sort?: "name" | "-written_rate" | "-bytes" | "-count" | "-lost_total" | "-ready";
        };
        result: TopicList;
    };
    /** Which seqs are live, as runs */
    live: {
        given: {
            topic: string;
            after?: number;
            last?: number;
            epoch?: number;
        };
        result: LiveRuns;
    };
    /** Metrics */
    metrics: {
        given: {};
        result: Metrics;
    };
    /** Move jobs to another topic */
    move: {
        given: {
            topic: string;
        } & MoveRequest;
        result: JobsMoved;
    };
    /** Give jobs back */
    nack: {
        given: {
            topic: string;
        } & NackRequest;
        result: JobsNacked;
    };
    /** Hand out no jobs */
    pause: {
        given: {
            topic: string;
        } & NoFields;
        result: QueuePaused;
    };
    /** Store a named cursor */
    put_cursor: {
        given: {
            topic: string;
            cursor: string;
        } & CursorRequest;
        result: CursorShown;
    };
    /** Create or configure a router */
    put_router: {
        given: {
            router: string;
        } & RouterRequest;
        result: RouterShown;
    };
    /** Create or configure a topic */
    put_topic: {
        given: {
            topic: string;
        } & TopicRequest;
        result: TopicPut;
    };
    /** Has it recovered and does it take requests */
    ready: {
        given: {};
        result: Ready;
    };
    /** Bring dead letters back */
    redrive: {
        given: {
            topic: string;
        } & RedriveRequest;
        result: LettersRedriven;
    };
    /** Hand out jobs again */
    resume: {
        given: {
            topic: string;
        } & NoFields;
        result: QueuePaused;
    };
    /** One named cursor */
    show_cursor: {
        given: {
            topic: string;
            cursor: string;
        };
        result: CursorShown;
    };
    /** What the key allows */
    show_me: {
        given: {};
        result: Me;
    };
    /** One record */
    show_record: {
        given: {
            topic: string;
            seq: number;
        };
        result: RecordShown;
    };
    /** One router */
    show_router: {
        given: {
            router: string;
        };
        result: RouterShown;
    };
    /** Settings, checkpoints, disk and memory */
    show_server: {
        given: {};
        result: ServerShown;
    };
    /** What happened lately */
    show_stats: {
        given: {
            history?: number;
        };
        result: Stats;
    };
    /** State of a topic */
    show_topic: {
        given: {
            topic: string;
            touch?: boolean;
        };
        result: TopicShown;
    };
    /** Sums over topics, by the next step of their names */
    show_tree: {
        given: {
            prefix?: string;
            page_size?: number;
            cursor?: string;
            contains?: string;
            type?: "log" | "queue";
            class?: "ephemeral" | "memory" | "disk" | "fsync";
        };
        result: Tree;
    };
}
/** How each operation is called: method, path, may it be repeated after a failure, what is in the query. */
export declare const operations: {
    [K in keyof Operations]: readonly [method: string, path: string, repeats: boolean, query: readonly string[]];
};
