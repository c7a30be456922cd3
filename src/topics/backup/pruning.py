"""Pruning: points that nobody wants any more go, and then the objects that no point needs.

Backups may be running into the same place, and nobody can lock an object store. So whoever acts says so first, and then
looks at what the others have said:

- A prune removes the descriptions of points, puts a *notice* that lists what no point needs, looks at the points again,
  removes what is listed and still needed by none, and then the notice.
- A receiver counts on nothing that a notice lists, puts the description of its point, and then looks for notices again.
  If one lists an object of the point, the description is taken back, and the point is shipped anew.

So a prune that has not seen a point was seen by the receiver of the point. Objects that were put lately are left alone:
they may belong to a point that is being shipped. A notice is good for ten minutes by the place's clock: a prune that
takes longer puts another one, and one that was killed is forgotten then; the next prune goes on where it stopped.
Nothing is touched that is not an object of a backup. Must not know: kinds of places, but that an archive cannot be
changed.
"""

import secrets

import msgspec
from msgspec import Struct

from topics.backup import layout
from topics.backup.layout import Point
from topics.backup.places import ArchivePlace, DirectoryPlace, Place, Unwritable
from topics.backup.points import Backup, objects_of
from topics.clock import Clock
from topics.errors import Damaged

NOTICES = f"{layout.POINTS}/prune-"  # what their names begin with; no directory of their own, which would come and go
YOUNG_MS = 3_600_000  # objects that were put since then stay
NOTICE_S = 600.0  # for which a notice is good


class Notice(Struct):
    """Objects that a prune is removing."""

    objects: list[str]


class Keep(Struct, frozen=True):
    """Which points stay, of each source: the newest ones, and all that a moment since then may need."""

    count: int = 0  # 0: by time
    since_ms: int = 0  # epoch-milliseconds


class Pruned(Struct):
    """What a prune has done, or would do."""

    kept: list[str]  # points
    removed: list[str]
    objects: int = 0  # removed
    bytes: int = 0
    objects_left: int = 0  # not needed, but put lately
    bytes_left: int = 0


def prune(place: Place, keep: Keep, clock: Clock, *, young_ms: int = YOUNG_MS, is_dry: bool = False) -> Pruned:
    """Remove what nobody needs. Damaged: a description cannot be read, so that nobody knows what it needs."""
    if isinstance(place, ArchivePlace) or (isinstance(place, DirectoryPlace) and place.is_temporary):
        raise Unwritable(f"{place.name} is an archive, which is written once; there is nothing to prune in it")
    backup = Backup(place)
    points = _described(backup)
    kept = kept_of(points, keep)
    done = Pruned(sorted(kept), sorted(points.keys() - kept))
    written = place.written()
    if is_dry:
        now = max(clock.now_ms() / 1000, *written.values())
        unneeded = unneeded_in(backup, {name: points[name] for name in kept}).difference(backup.points.values())
        _take(done, backup, *_by_age(unneeded, written, now, young_ms))
        return done
    for name in done.removed:
        place.remove(backup.points[name])
    while not _remove_some(place, clock, young_ms, done):
        pass
    return done


def _remove_some(place: Place, clock: Clock, young_ms: int, done: Pruned) -> bool:
    """Remove for as long as a notice is good. False: there is more."""
    until = clock.monotonic() + NOTICE_S / 2
    backup = _listed(place, done.kept)
    listed = unneeded_in(backup, _described(backup))
    notice = f"{NOTICES}{secrets.token_hex(8)}.json"
    place.put(notice, msgspec.json.encode(Notice(sorted(listed))))
    backup = _listed(place, done.kept)  # there may be new points
    written = place.written()
    old, young = _by_age(listed & unneeded_in(backup, _described(backup)), written, written[notice], young_ms)
    taken = []
    for path in old:
        if clock.monotonic() > until:
            break
        place.remove(path)
        taken.append(path)
    is_over = len(taken) == len(old)
    _take(done, backup, taken, young if is_over else [])
    for path, at in written.items():
        if path == notice or (path.startswith(NOTICES) and written[notice] - at > NOTICE_S):
            place.remove(path)
    return is_over


def _listed(place: Place, kept: list[str]) -> Backup:
    """What is there. What a point needs must not go because the place has left the point out."""
    backup = Backup(place)
    missing = set(kept) - backup.points.keys()
    if missing:
        raise Unwritable(
            f"{place.name} does not list point {min(missing)} any more: somebody else has removed it, or the place "
            "does not list all that it has; no object is removed"
        )
    return backup


def _by_age(paths: set[str], written: dict[str, float], now: float, young_ms: int) -> tuple[list[str], list[str]]:
    """Objects that may go, and those that were put lately."""
    young = {path for path in paths if (now - written.get(path, 0.0)) * 1000 < young_ms}
    return sorted(paths - young), sorted(young)


def _take(done: Pruned, backup: Backup, removed: list[str], left: list[str]) -> None:
    done.objects += len(removed)
    done.bytes += sum(backup.sizes[path] for path in removed)
    done.objects_left += len(left)
    done.bytes_left += sum(backup.sizes[path] for path in left)


def kept_of(points: dict[str, Point], keep: Keep) -> set[str]:
    """The newest points of each source; by time, all from the last one before `since_ms` on."""
    kept: set[str] = set()
    for source in {point.source for point in points.values()}:
        names = sorted(name for name, point in points.items() if point.source == source)
        first = max(0, len(names) - keep.count) if keep.count else len(names) - 1
        if not keep.count:
            while first and points[names[first]].ts > keep.since_ms:
                first -= 1
        kept.update(names[first:])
    return kept


def _described(backup: Backup) -> dict[str, Point]:
    """All points, without those whose descriptions were taken back meanwhile."""
    points = {}
    for name, path in backup.points.items():
        try:
            points[name] = backup.point(name)
        except Damaged:
            if path in backup.place.sizes():
                raise
    return points


def unneeded_in(backup: Backup, points: dict[str, Point]) -> set[str]:
    """The objects of a backup that these points do not need."""
    needed = {backup.points[name] for name in points}
    for point in points.values():
        needed.update((*point.log, *objects_of(point)))
    unneeded = set()
    for path in backup.sizes:
        chunk = layout.chunk_in(path)
        is_ours = chunk is not None or layout.identity_in(path) is not None or layout.point_in(path) is not None
        is_own = chunk is not None and chunk[0] in points  # what was shipped behind a point
        if is_ours and not is_own and path not in needed:
            unneeded.add(path)
    return unneeded


def being_removed(place: Place, after: str = "") -> set[str]:
    """Objects that a prune may be removing; of notices that are good, by the place's clock, when `after` was put."""
    written = place.written()
    now = written.get(after, 0.0)
    found: set[str] = set()
    for path, at in written.items():
        if path.startswith(NOTICES) and now - at <= NOTICE_S:
            try:
                found.update(msgspec.json.decode(place.get(path), type=Notice).objects)
            except (FileNotFoundError, msgspec.DecodeError):
                continue  # that prune is done
    return found
