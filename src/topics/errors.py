"""Every error that topics raises on purpose.

    TopicsError
    ├── Refusal                 the request cannot be served as asked; nothing changed
    │   ├── InvalidRequest      400 invalid_request
    │   │   ├── BatchTooLarge   400 batch_too_large
    │   │   └── RecordTooLarge  400 record_too_large
    │   ├── Unauthorized        401 unauthorized
    │   ├── Forbidden           403 forbidden
    │   ├── NotFound            404 not_found
    │   │   ├── TopicNotFound   404 topic_not_found
    │   │   └── RouterNotFound  404 router_not_found
    │   ├── MethodNotAllowed    405 method_not_allowed
    │   ├── NotAcceptable       406 not_acceptable
    │   ├── TopicIncompatible   409 topic_exists_incompatible
    │   ├── TopicNotEmpty       409 topic_not_empty
    │   ├── NotAQueue           409 not_a_queue
    │   ├── NoDeadLetter        409 no_dead_letter
    │   ├── EpochMismatch       409 epoch_mismatch
    │   ├── IdempotencyMismatch 409 idempotency_mismatch
    │   ├── RouterCycle         409 router_cycle
    │   ├── PayloadTooLarge     413 payload_too_large
    │   ├── UnsupportedMedia    415 unsupported_media_type
    │   ├── TopicFull           422 topic_full
    │   ├── Throttled           429 throttled
    │   ├── NotReady            503 not_ready
    │   └── ShuttingDown        503 shutting_down
    ├── StorageError            500 internal: the disk failed; nothing a reader can see changed
    │   ├── CommitFailed        this commit could not be made as durable as its class asks
    │   ├── Damaged             a file's bytes are not what was written
    │   ├── DirectoryLocked     another process has the data directory
    │   └── UnusableDirectory   the data directory cannot be opened or belongs to a newer version
    └── ConfigurationError      a setting that stops the start; names the variable

This module imports nothing of the package.
"""

from typing import Any


class TopicsError(Exception):
    """Root of the tree; `code` and `status` are what the wire shows."""

    status = 500
    code = "internal"

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class Refusal(TopicsError):
    """A request that cannot be served as asked. Nothing changed."""


class InvalidRequest(Refusal):
    status, code = 400, "invalid_request"


class BatchTooLarge(InvalidRequest):
    code = "batch_too_large"


class RecordTooLarge(InvalidRequest):
    code = "record_too_large"


class Unauthorized(Refusal):
    status, code = 401, "unauthorized"


class Forbidden(Refusal):
    status, code = 403, "forbidden"


class NotFound(Refusal):
    status, code = 404, "not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', topic=topic)


class RouterNotFound(NotFound):
    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', router=router)


class MethodNotAllowed(Refusal):
    status, code = 405, "method_not_allowed"


class NotAcceptable(Refusal):
    status, code = 406, "not_acceptable"


class TopicIncompatible(Refusal):
    status, code = 409, "topic_exists_incompatible"


class TopicNotEmpty(Refusal):
    status, code = 409, "topic_not_empty"


class NotAQueue(Refusal):
    status, code = 409, "not_a_queue"

    def __init__(self, topic: str, message: str = "") -> None:
        super().__init__(message or f'topic "{topic}" is a log; only a queue hands out jobs', topic=topic)


class NoDeadLetter(Refusal):
    status, code = 409, "no_dead_letter"

    def __init__(self, topic: str) -> None:
        super().__init__(f'queue "{topic}" has no dead_letter topic; nothing can come back from there', topic=topic)


class EpochMismatch(Refusal):
    status, code = 409, "epoch_mismatch"

    def __init__(self, topic: str, epoch: int, requested_epoch: int) -> None:
        super().__init__(
            f'topic "{topic}" has epoch {epoch}, not {requested_epoch}: it was deleted and created again, '
            "or a restart has emptied it",
            topic=topic,
            epoch=epoch,
            requested_epoch=requested_epoch,
        )


class CursorMoved(Refusal):
    """A named cursor does not stand where the caller thinks it does."""

    status, code = 409, "cursor_moved"

    def __init__(self, topic: str, cursor: str, seq: int | None) -> None:
        where = "is not there" if seq is None else f"stands at {seq}"
        super().__init__(f'cursor "{cursor}" of topic "{topic}" {where}, not at if_seq', topic=topic, seq=seq)


class IdempotencyMismatch(Refusal):
    status, code = 409, "idempotency_mismatch"

    def __init__(self, topic: str, key: str, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f'idempotency_key "{key}" stands for other records of topic "{topic}", seqs {first_seq} to {last_seq}; '
            "nothing was appended; give these records a key of their own",
            idempotency_key=key,
            first_seq=first_seq,
            last_seq=last_seq,
        )


class RouterCycle(Refusal):
    status, code = 409, "router_cycle"


class PayloadTooLarge(Refusal):
    status, code = 413, "payload_too_large"


class UnsupportedMedia(Refusal):
    status, code = 415, "unsupported_media_type"


class TopicFull(Refusal):
    status, code = 422, "topic_full"


class Throttled(Refusal):
    """Pressure (`retry_after_ms` in the detail) or a resource cap (`limit`, `max`)."""

    status, code = 429, "throttled"


class NotReady(Refusal):
    status, code = 503, "not_ready"


class ShuttingDown(Refusal):
    status, code = 503, "shutting_down"


class StorageError(TopicsError):
    """The disk failed. Nothing a reader can see changed."""


class CommitFailed(StorageError):
    """This commit could not be made as durable as its class asks."""


class Damaged(StorageError):
    """Bytes in `file` at `offset` are not what was written there."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(f"{file}: damaged at offset {offset}: {what}")
        self.file = file
        self.offset = offset


class DirectoryLocked(StorageError):
    """Another process has the data directory."""


class UnusableDirectory(StorageError):
    """The data directory cannot be opened, or a newer version wrote it."""


class ConfigurationError(TopicsError):
    """A setting that stops the start."""
