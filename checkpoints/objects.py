"""An epoch log in a folder of an object store; ``names.py`` says which objects lie in it.

The promise "a position is never created twice, and an answer is never taken back" depends on these rules:

1. A record is one object, created by one put with the condition ``If-None-Match: *``.  The store lets one of several
   puts create a name.  An object is whole or not there, and is durable once its put is answered.
2. No answer to a put is believed without a look.  "Exists already" proves no competitor: the put may have landed, its
   answer may be lost, and the client has repeated it.  Also an error proves nothing.  So each attempt has a random
   token of its own in its object, and the object is read back to see whose it is.  If it cannot be read, the outcome is
   unknown.
3. A floor is readable before anything below it is deleted.  Then the records are deleted, and after them the older
   floors.
4. After its put an append lists the folder, and then reads its object.  If the listing has something higher, or if the
   object is gone or another's, then a compaction or another start was faster, and the answer is "taken".

Why rule 4 suffices: suppose that the position was below a floor when the put landed.  The listing began later, so it
has that floor, unless a later compaction deleted it meanwhile.  But that compaction deletes the records below its own
floor first, also the new one, so the object is gone when it is read.  A put that lands late, after its caller has given
up, is covered, too: its record is the next one, or lies below a floor, where nobody reads it.

A listing need not be a snapshot.  So a reader lists again after it has read, until two listings agree.

Rule 1 is a property of the store: S3, GCS and Azure have it.  Before its first put each log tries out a name of its own
(:meth:`ObjectLog.try_out`), and refuses a store that ignores the condition or does not list what it has.  This trial
cannot detect a store that looks and writes in two steps.  Nor does the condition bind writers that do not ask for it:
:meth:`ObjectLog.policy` is the bucket policy that does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from epochal.checkpoints import s3
from epochal.checkpoints.bucket import Bucket, NoSuchRequest, located
from epochal.checkpoints.log import Entry, LogPosition, Record, encode
from epochal.checkpoints.names import (
    Names,
    encode_floor,
    floor_name,
    gone,
    read_settled,
    record_name,
    settled,
    sort_names,
)
from epochal.checkpoints.rules import check_compaction, check_order, epoch_of, is_free
from epochal.checkpoints.s3a import Hadoop, options_of
from epochal.coordinator.model import failpoints
from epochal.coordinator.model.arguments import check_types
from epochal.coordinator.model.errors import Misconfigured, OutcomeUnknown, SinkUnavailable
from epochal.coordinator.model.failpoints import Point

_OTHER_STORE = (
    "put the checkpoint on a store with atomic conditional puts (S3, GCS, Azure), on HDFS or on a local disk; or pass"
    " log=PostgresLog(dsn, name) from epochal.checkpoints.postgres"
)


class ObjectLog:
    """Implements :class:`~epochal.checkpoints.log.EpochLog`.  A folder without objects is an empty log.

    ``folder``: a URL, such as ``s3a://bucket/logs/flights``; also ``s3``, ``gs``, ``abfs``, ``abfss``, ``wasb`` and
    ``wasbs``.
    ``options``: arguments of obstore's store for such a URL: ``access_key_id``, ``secret_access_key``, ``endpoint``,
    ``region``, ``credential_provider``, ``client_options`` and so on.  What they leave out, obstore takes from the
    environment, and credentials then from the instance.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        check_types(ObjectLog.__init__.__annotations__, {"folder": folder})
        self._bucket = Bucket(folder, lambda: located(self._bucket, options))
        self._tried = self._made = False

    @classmethod
    def of_spark(cls, folder: str, hadoop: Callable[[], Hadoop]) -> ObjectLog:
        """Return a log with the settings that Spark's Hadoop configuration has for S3 (``fs.s3a...``).

        ``hadoop``: called before the first request; gives the JVM and its configuration.
        """
        log = cls(folder)
        bucket = log._bucket
        if bucket.scheme in s3.SCHEMES:
            log._bucket = Bucket(folder, lambda: options_of(hadoop(), bucket.name, os.environ))
        return log

    def describe(self) -> str:
        """See :meth:`EpochLog.describe`."""
        return f"objects:{self._bucket.shown}"

    def policy(self) -> str:
        """Return the bucket policy of S3 that forbids everybody to overwrite an object of this log, as JSON."""
        bucket = self._bucket
        if bucket.scheme not in s3.SCHEMES:
            raise Misconfigured(
                f"{bucket.scheme}:// has no bucket policy that forbids to overwrite and lets a query delete",
                help="give the right to write below the epoch log to the user of the query alone",
            )
        return s3.policy(bucket.name, bucket.path, bucket.options()["region"])

    def read(self) -> Sequence[Entry]:
        """See :meth:`EpochLog.read`."""
        with self._no_effect("read"):
            return self._read()[1]

    def append(self, position: LogPosition, record: Record) -> bool:
        """See :meth:`EpochLog.append`."""
        what = f"append at position {position}"
        epoch = epoch_of(record)
        with self._no_effect(what):
            if not self._is_free(position):
                return False
            self.try_out()
            failpoints.hit(Point.LOG_BEFORE_APPEND, epoch=epoch)
        with self._outcome_unknown(what):
            token = self._create(position, record_name(position), encode(record))
            if token is None:
                return False
            failpoints.hit(Point.LOG_AFTER_APPEND, epoch=epoch)
            return self._list().ends_with(position) and self._is_ours(position, record_name(position), token)

    def compact(self, floor: LogPosition, kept: Sequence[Entry]) -> None:
        """See :meth:`EpochLog.compact`."""
        what = f"compaction to floor {floor}"
        with self._no_effect(what):
            present, entries = self._read()
            if floor <= present:
                return
            check_compaction(entries, floor, kept)
            self.try_out()
        with self._outcome_unknown(what):
            self._create(floor, floor_name(floor), encode_floor(floor, kept))
            if self._read()[0] < floor:  # it, or a higher one, must be there and whole before anything is deleted
                raise OSError(f"the store does not show {floor_name(floor)}")
            failpoints.hit(Point.LOG_AFTER_FLOOR)
            self._delete_below(floor)

    def try_out(self) -> None:
        """Raise ``Misconfigured`` if the store cannot hold a log.  A name is created, listed, refused and deleted.

        The name is hidden, so it is no part of the log.  This is done once.
        """
        if self._tried:
            return
        name = f".try-out.{_token()}"
        try:
            self._try_out(name)
        except NoSuchRequest as error:
            raise self._unfit(f"does not know the condition that a put must not overwrite: {error}") from None
        except (OSError, Misconfigured):
            with contextlib.suppress(OSError):
                self._bucket.delete([name])
            raise
        try:
            self._bucket.delete([name])  # a compaction needs this right
        except NoSuchRequest as error:
            raise self._unfit(
                f"cannot delete several objects in one request (if it can delete one, pass disable_bulk_delete=True):"
                f" {error}"
            ) from None
        self._tried = True

    def check_store(self) -> None:
        """Try out the store (:meth:`try_out`) before anything is written, for the doctor."""
        with self._no_effect("trial of the store"):
            self.try_out()

    def _try_out(self, name: str) -> None:
        first, second = _token().encode(), _token().encode()
        with contextlib.suppress(FileExistsError):  # it is ours, also if the client has repeated the put
            self._bucket.create(name, first)
        self._bucket.read(name)  # if it is not there, the store was only busy: that is no refusal
        if name not in self._bucket.list():
            raise self._unfit("does not list an object that it has")
        if self._is_created(name, second) or self._bucket.read(name) != first:
            raise self._unfit("ignores the condition that a put must not overwrite (If-None-Match: *)")

    def _is_created(self, name: str, data: bytes) -> bool:
        try:
            self._bucket.create(name, data)
        except FileExistsError:
            return False
        return True

    # --- reading --------------------------------------------------------------------------------

    def _read(self) -> tuple[LogPosition, list[Entry]]:
        where = self.describe()
        names, entries = read_settled(
            self._list, lambda name: self._object(name)[1], lambda n: f"{self._bucket.url}/{n}", where
        )
        self._check_there(names)
        check_order(names.records, names.floor, where)
        return names.floor, entries

    def _list(self) -> Names:
        return sort_names(self._bucket.list(), self.describe())

    def _check_there(self, names: Names) -> None:
        if self._made and names == Names():
            raise gone(self.describe())

    def _object(self, name: str) -> tuple[str, bytes]:
        """Return the token of the attempt that created an object, and what it holds."""
        token, _, data = self._bucket.read(name).partition(b" ")
        return token.decode(errors="replace"), data

    def _is_free(self, position: LogPosition) -> bool:
        """See :func:`is_free`.  One listing can say that a position is free.  Any other answer needs two equal ones."""
        names = self._list()
        if names == Names() or position != max(names.floor, names.end):
            names = settled(self._list, self.describe())
            self._check_there(names)
        return is_free(position, floor=names.floor, end=names.end, where=self.describe())

    # --- writing --------------------------------------------------------------------------------

    def _create(self, position: LogPosition, name: str, data: bytes) -> str | None:
        """Create an object; return its token, or None if the name is another's or its position is below a floor."""
        token = _token()
        try:
            self._bucket.create(name, f"{token} ".encode() + data)
        except OSError as error:
            if not self._is_ours(position, name, token, error):
                return None
        self._made = True
        return token

    def _is_ours(self, position: LogPosition, name: str, token: str, error: OSError | None = None) -> bool:
        """Return whether the object is of this attempt.  Raise ``error`` if there is none, and no floor tells why."""
        try:
            return self._object(name)[0] == token
        except FileNotFoundError as absent:
            if self._list().floor > position:
                return False
            raise error or OSError(f"the store has answered that {name} is created, and has none: {absent}") from None

    def _delete_below(self, floor: LogPosition) -> None:
        names = self._list()
        self._bucket.delete([record_name(p) for p in names.records if p < floor])
        self._bucket.delete([floor_name(p) for p in names.floors if p < floor])

    # --- errors ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _no_effect(self, what: str) -> Iterator[None]:
        """Turn an error before the put into one of ours that says: the request had no effect."""
        try:
            yield
        except PermissionError as error:
            raise Misconfigured(
                f"the epoch log may not be used ({what}): {error}",
                state=self.describe(),
                help="give the user of the query the rights to list, get, put and delete objects there; or pass"
                " log=ObjectLog(url, ...) with credentials",
            ) from None
        except OSError as error:
            raise SinkUnavailable(
                f"the {what} of the epoch log failed: {error}",
                state=f"{self.describe()}; it had no effect",
                help="make the store reachable, and correct bucket, region and endpoint if it does not know them; the"
                " same request may be repeated",
            ) from None

    @contextlib.contextmanager
    def _outcome_unknown(self, what: str) -> Iterator[None]:
        """Turn an error from the put on into ``OutcomeUnknown``: the request may have been applied."""
        try:
            yield
        except OSError as error:
            raise OutcomeUnknown(
                f"the {what} of the epoch log has no answer: {error}",
                state=self.describe(),
                help="make the store reachable; the same request may be repeated",
            ) from None

    def _unfit(self, why: str) -> Misconfigured:
        return Misconfigured(
            f"the object store of the epoch log {why}",
            state=f"{self.describe()}; nothing of the log was written",
            help=_OTHER_STORE,
        )


def _token() -> str:
    return secrets.token_hex(16)
