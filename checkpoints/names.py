"""The files of a log that is a folder, and how to read that folder while others change it.

::

    00000000000000000007.floor      below position 7 the log has only the entries in this file
    00000000000000000007.record     the record at position 7
    .<name>.<random>.tmp            a draft: being written, or left by a dead process

File managers, backups and file systems leave names of their own in folders (``.DS_Store``, ``lost+found``).  Those, and
all other hidden files, are ignored: no version of Epochal gives a file that counts a hidden name.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from epochal.checkpoints.log import Entry, LogPosition, decode, encode
from epochal.coordinator.model.errors import LogCorrupt, Misconfigured, SinkUnavailable

FLOOR_VERSION = 1
LISTINGS = 40
"""How many times a reader lists a folder again if other processes change it meanwhile."""

_NAME = re.compile(r"(?P<position>\d{20})\.(?P<kind>record|floor)")
_DELETED = re.compile(r"\.(nfs|fuse_hidden)[0-9a-fA-F]+")
_LITTER = re.compile(r"\..*|lost\+found|desktop\.ini|Thumbs\.db|@eaDir", re.DOTALL)
_DRAFT = re.compile(r"\.(?P<position>\d{20})\.(record|floor)\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True)
class Names:
    """The names in a folder, in ascending order."""

    floors: tuple[LogPosition, ...] = ()
    records: tuple[LogPosition, ...] = ()
    drafts: tuple[str, ...] = field(default=(), compare=False)

    @property
    def floor(self) -> LogPosition:
        return self.floors[-1] if self.floors else 0

    @property
    def end(self) -> LogPosition:
        return self.records[-1] + 1 if self.records else 0

    def ends_with(self, position: LogPosition) -> bool:
        """Return whether the folder has no higher record, and no floor above ``position``."""
        return position >= self.floor and position + 1 >= self.end


def sort_names(found: Iterable[str], where: str) -> Names:
    """Sort the names of a listing; raise ``LogCorrupt`` for a name that is not one of a log.

    ``Misconfigured`` for the name of a deleted file: on such a file system no log can lie (``filesystem.py``).
    """
    positions: dict[str, list[LogPosition]] = {"floor": [], "record": []}
    drafts = []
    for name in found:
        if match := _NAME.fullmatch(name):
            positions[match["kind"]].append(int(match["position"]))
        elif _DRAFT.fullmatch(name):
            drafts.append(name)
        elif _DELETED.fullmatch(name):
            raise keeps_deleted(where)
        elif not _LITTER.fullmatch(name):
            raise _foreign(name, where)
    return Names(tuple(sorted(positions["floor"])), tuple(sorted(positions["record"])), tuple(drafts))


def record_name(position: LogPosition) -> str:
    return f"{position:020}.record"


def floor_name(position: LogPosition) -> str:
    return f"{position:020}.floor"


def draft_name(name: str) -> str:
    """Return a unique name for the draft of the file ``name``."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


def drafted_for(draft: str) -> LogPosition:
    """Return the position in the name of a draft."""
    match = _DRAFT.fullmatch(draft)
    assert match is not None, draft
    return int(match["position"])


def settled(look: Callable[[], Names], where: str) -> Names:
    """List the folder until two listings in a row agree; ``SinkUnavailable`` if they never do."""
    names = look()
    for _ in range(LISTINGS):
        if (again := look()) == names:
            return names
        names = again
    raise still_changing(where)


def read_settled(
    look: Callable[[], Names], read: Callable[[str], bytes], where: Callable[[str], str], whole: str
) -> tuple[Names, list[Entry]]:
    """Return the names that are the same before and after the reading, and the entries of the log.

    Error messages need both of these: ``where`` returns the place of a file, and ``whole`` is the place of the log.
    """
    names = look()
    for _ in range(LISTINGS):
        # if a compaction deletes a file between listing and reading, list again
        with contextlib.suppress(FileNotFoundError):
            entries = _entries(names, read, where)
            if look() == names:
                return names, entries
        names = look()
    raise still_changing(whole)


def _entries(names: Names, read: Callable[[str], bytes], where: Callable[[str], str]) -> list[Entry]:
    kept: list[Entry] = []
    if names.floors:
        name = floor_name(names.floor)
        kept = decode_floor(read(name), names.floor, where(name))
    there = [(p, record_name(p)) for p in names.records if p >= names.floor]
    return kept + [Entry(p, decode(read(name), where(name))) for p, name in there]


def encode_floor(floor: LogPosition, kept: Sequence[Entry]) -> bytes:
    """Return the content of a floor file: a line with version and checksum, one with floor and count, the entries."""
    lines = b"".join(b"%d %b" % (e.position, encode(e.record)) for e in kept)
    body = b"%d %d\n%b" % (floor, len(kept), lines)
    return b"epochal-floor %d %b\n%b" % (FLOOR_VERSION, _checksum(body), body)


def decode_floor(data: bytes, floor: LogPosition, where: str) -> list[Entry]:
    """Return the entries that :func:`encode_floor` was given; ``LogCorrupt``, naming ``where``, if it is damaged."""
    try:
        first, _, body = data.partition(b"\n")
        word, version, checksum = first.split(b" ")
        if word != b"epochal-floor":
            raise ValueError("not a floor of an epoch log")
        if version != b"%d" % FLOOR_VERSION:
            raise ValueError(f"floor of version {version.decode(errors='replace')}; this Epochal reads {FLOOR_VERSION}")
        if checksum != _checksum(body):
            raise ValueError("checksum does not match: torn or foreign")
        second, *lines = body.split(b"\n")[:-1]
        if second != b"%d %d" % (floor, len(lines)):
            raise ValueError(f"says {second!r}, not floor {floor} and {len(lines)} entries")
        split = [line.partition(b" ") for line in lines]
        return [Entry(int(position), decode(record + b"\n", where)) for position, _, record in split]
    except ValueError as error:
        raise LogCorrupt(
            f"{where} is not a whole floor of the epoch log: {error}",
            state=f"{len(data)} bytes, beginning {data[:40]!r}",
            help="restore the file from a backup of the checkpoint, or upgrade Epochal if it is newer",
        ) from error


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


# --- errors -----------------------------------------------------------------------------------------


def still_changing(where: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"the epoch log {where} changed during each of {LISTINGS} readings",
        help="find out which processes append to it or compact it; only one query may do so",
    )


def gone(where: str) -> LogCorrupt:
    return LogCorrupt(
        f"the folder of the epoch log {where} is gone",
        state="this process has written to it before",
        help="restore the checkpoint from a backup, with its epoch log",
    )


_ELSEWHERE = (
    "put the checkpoint on a local disk (ext4, xfs, btrfs, apfs) or on HDFS; or pass log=PostgresLog(dsn, name) from"
    " epochal.checkpoints.postgres"
)


def without_links(where: str, error: OSError) -> Misconfigured:
    return Misconfigured(f"the file system of the epoch log {where} has no hard links: {error}", help=_ELSEWHERE)


def without_sync(where: str, error: OSError) -> Misconfigured:
    return Misconfigured(
        f"the file system of the epoch log {where} cannot make the names in a folder durable: {error}", help=_ELSEWHERE
    )


def keeps_deleted(where: str) -> Misconfigured:
    return Misconfigured(
        f"the file system of the epoch log {where} keeps names of deleted open files, as NFS and most of FUSE do",
        help=_ELSEWHERE,
    )


def _foreign(name: str, where: str) -> LogCorrupt:
    return LogCorrupt(
        f"the epoch log {where} holds a foreign file: {name!r}",
        state="only files of the epoch log may lie in its folder",
        help="move that file elsewhere, or upgrade Epochal if a newer version wrote it",
    )
