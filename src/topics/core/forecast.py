"""When a record will be lost if its topic goes on being written to as it is now (LS3). Pure."""

from topics.core.rates import SECONDS
from topics.core.state import Topic


def seconds_until_loss(topic: Topic, now: int, after: int = 0) -> float | None:
    """In how many seconds the first live record above `after` falls to a cap or its age; None: that is not foreseen."""
    log, config = topic.log, topic.config
    is_evicting = config.discard == "old" and bool(config.cap_records or config.cap_bytes)
    if not log.count or not (config.ttl_ms or is_evicting):
        return None
    seq = log.earliest if after < log.earliest else next(log.live_after(after), 0)
    if not seq:
        return None
    foreseen = []
    if config.ttl_ms:
        foreseen.append((ts_of(topic, seq) + config.ttl_ms - now) / 1000)
    written = log.written_lately(now) if is_evicting else 0
    if written and config.cap_records:
        rank = 1 if seq == log.earliest else log.count_through(seq)
        foreseen.append((config.cap_records - log.count + rank) * SECONDS / written)
    if written and config.cap_bytes and log.bytes:
        before = 0 if seq == log.earliest else log.bytes_through(seq - 1)
        foreseen.append((config.cap_bytes - log.bytes + before) * log.count / log.bytes * SECONDS / written)
    return max(0.0, round(min(foreseen), 3)) if foreseen else None


def ts_of(topic: Topic, seq: int) -> int:
    """When a live record was written."""
    part = topic.log.part_at(seq)
    assert part is not None, f"record {seq} is live, and in no part"
    return part.ts_at(part.row_from(seq))
