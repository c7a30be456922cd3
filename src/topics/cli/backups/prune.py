"""`topics backup prune`: old points of a backup go, and what only they need."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.backup.places import Place
    from topics.backup.pruning import Keep, Pruned


def check_given(source: str, keep: str, *, follows: bool, is_dry: bool) -> None:
    """Refuse options that do not go together."""
    from topics.errors import InvalidRequest

    if source != "prune" and (keep or is_dry):
        raise InvalidRequest("--keep and --dry-run belong to a prune: topics backup prune DEST --keep 30d")
    if source == "prune" and follows:
        raise InvalidRequest("a prune does not follow; run it again and again, as often as you like")
    if source == "prune" and not keep:
        raise InvalidRequest("say what to keep: --keep 30d for the moments of 30 days, --keep 10 for ten points")


def run_prune(place: "Place", keep: str, young: str, *, is_dry: bool, is_json: bool) -> None:
    import msgspec

    from topics.backup.pruning import prune
    from topics.clock import SystemClock

    clock = SystemClock()
    done = prune(place, _keep(keep, clock.now_ms()), clock, young_ms=_duration_ms("--young", young), is_dry=is_dry)
    if is_json:
        print(msgspec.json.encode({**msgspec.to_builtins(done), "dry_run": is_dry}).decode())
    else:
        _report(done, is_dry=is_dry)


def _keep(text: str, now_ms: int) -> "Keep":
    from topics.backup.pruning import Keep
    from topics.errors import InvalidRequest

    if text.isascii() and text.isdigit():
        if not 0 < int(text) < 10**9:
            raise InvalidRequest(f"--keep is {text}; keep one point at least, or a time such as 30d")
        return Keep(count=int(text))
    return Keep(since_ms=now_ms - _duration_ms("--keep", text))


def _duration_ms(option: str, text: str) -> int:
    import typer

    from topics.cli.shell.quantities import duration_ms
    from topics.errors import InvalidRequest

    try:
        return duration_ms(text)
    except typer.BadParameter as error:
        raise InvalidRequest(f"{option}: {error.message}") from None


def _report(done: "Pruned", *, is_dry: bool) -> None:
    from topics.cli.backups.showing import size_text

    removed, would = len(done.removed), "would be " if is_dry else ""
    print(f"{len(done.kept):,} points are kept, from {done.kept[0]} on; {removed:,} {would}removed")
    print(f"{done.objects:,} objects with {size_text(done.bytes)} {would}removed")
    if done.objects_left:
        left = size_text(done.bytes_left)
        print(
            f"{done.objects_left:,} objects with {left} that no point needs were put lately; a later prune takes them"
        )
