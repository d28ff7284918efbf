"""``Pipeline(frames=)``: the user's function that makes several DataFrames of one micro-batch.

Sinks get one of them each, by ``frame=``.  Before a query starts, the function is called with a DataFrame without rows,
so that the columns of each frame are known.  In an epoch it gets the durable copy of the micro-batch.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused
from epochal.coordinator.protocol.frames import Frames, frame_of, frames_of
from epochal.coordinator.query import lint
from epochal.coordinator.query.plan import analyzed
from epochal.coordinator.query.spark import with_one_name
from epochal.sinks.conditions import check_name
from epochal.sinks.protocol import Sink
from epochal.sinks.questions import NO_COLUMNS, Answer, NotAsked, Question
from epochal.sinks.spark.executors import NO_SESSION
from epochal.sinks.spark.settings import is_case_sensitive
from epochal.sinks.spark.stage import check_schema
from epochal.sinks.spark.types import relaxed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MakeFrames = Callable[["DataFrame"], Mapping[str, "DataFrame"]]
"""Gives DataFrames by their names; its argument is a micro-batch, already evaluated once."""

_NO_ROWS = "epochal: the DataFrame that frames= gets before a query starts has columns and no rows"
_WRITERS = ("write", "writeTo", "mergeInto")
"""What begins a write of a DataFrame; before Spark 4 there is no mergeInto."""
_ONE_AT_A_TIME = threading.RLock()
"""Held while writers are barred, so that two starts do not restore each other's bars."""
_RETURN = 'return a dict of DataFrames by their names: {"orders": batch.drop("items"), "items": items}'


class FrameFunction:
    """The user's function, with what Epochal asks of it.  ``sinks``: all sinks of the pipeline."""

    def __init__(self, make: MakeFrames, sinks: Sequence[Sink]) -> None:
        self._make = make
        self.read = frames_of(sinks)

    def without_rows(self, schema: StructType, spark: SparkSession) -> Mapping[str, DataFrame]:
        """Return the frames of a DataFrame that has this schema and no rows.

        Raise ``Misconfigured`` for a function that does not fit.
        """
        rows = _without_rows(spark, schema)
        with _no_writers(type(rows)):
            frames = self._call(rows)
        if missing := [name for name in self.read if name not in frames]:
            raise Misconfigured(
                f"frames= returns no frame {missing[0]!r}, which a sink gets",
                state=f"it returns {sorted(frames)}",
                help="return a DataFrame under this name, or correct the sink's frame=",
            )
        return frames

    def cautions(self, frames: Mapping[str, DataFrame]) -> list[str]:
        """Return what to know of the frames: those that nobody gets, and those that do not repeat."""
        unread = sorted(frames.keys() - set(self.read))
        told = [f"frame {name} is returned by frames=, and no sink gets it" for name in unread]
        for name in self.read if len(self.read) > 1 else ():
            if found := list(lint.find(analyzed(frames[name]), batch=True)):
                told.append(
                    f"frame {name}: {found[0]}. Each frame is evaluated once, on its own: if two frames are made of"
                    " such a value, each has its own. Compute it in the query, before the micro-batch"
                )
        return told

    def of_epoch(self, shapes: Mapping[str, StructType], rows: DataFrame) -> Mapping[str, DataFrame]:
        """Return the frames of an epoch whose rows are in a durable copy.

        ``shapes``: the columns at start.  Raise ``PrepareRefused`` if a frame is missing, or has other columns.
        """
        frames = self._call(rows)
        for name in self.read:
            if name not in frames:
                raise PrepareRefused(
                    f"frames= returns no frame {name!r} for these rows",
                    state=f"it returns {sorted(frames)}; nothing was decided",
                    help="return the same frames for every micro-batch; a frame may be empty",
                )
            if found := _difference(shapes[name], frames[name].schema):
                raise PrepareRefused(
                    f"frame {name!r} has other columns than at the start of the query: {found}",
                    state="nothing was decided",
                    help="make the columns of a frame depend on the columns of the micro-batch alone, not on its rows",
                )
        return {name: with_one_name(frames[name]) for name in self.read}

    def _call(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        try:
            frames = self._make(rows)
        except EpochalError:
            raise
        except Exception as error:
            if _NO_ROWS in str(error):
                raise Misconfigured(
                    "frames= runs an action on the micro-batch (count, collect, toPandas, write, ...)",
                    state="it was called with a DataFrame that has columns and no rows, to learn the frames' columns",
                    help="return DataFrames and let the sinks evaluate them; what depends on rows belongs in a frame",
                ) from error
            raise Misconfigured(
                f"frames= raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                state="nothing was written",
                help="correct the function",
            ) from error
        return _checked(frames)


class Shapes:
    """The columns that each sink gets: those of the micro-batch, or of its frame.

    ``schema``: of the micro-batch, if it is known.  ``frames``: the user's function, if there is one; it is called when
    a frame is asked for.
    """

    def __init__(self, schema: StructType | None, frames: FrameFunction | None, spark: SparkSession | None) -> None:
        self._schema, self._frames, self._spark = schema, frames, spark

    def known(self, sink: Sink) -> StructType | None:
        """Return what the sink gets; None if it is not known here."""
        if self._schema is None or (frame_of(sink) and self._spark is None):
            return None
        return self.of(sink)

    def of(self, sink: Sink) -> StructType:
        """Return what the sink gets.  Raise ``Misconfigured`` if no session runs, and a frame is asked for."""
        return self._of_frames[frame_of(sink)] if frame_of(sink) else self._schema  # type: ignore[return-value]

    @property
    def frames(self) -> Frames | None:
        """Make the frames of an epoch of this start, and hold them to the columns that they have here."""
        return None if self._frames is None else partial(self._frames.of_epoch, self._of_frames)

    def questions(self) -> Iterator[Question]:
        """Ask whether the user's function fits and its frames can be copied; warn of those that nobody gets."""
        if self._frames is None:
            return
        yield Question("frames", self._told)
        for name in self._frames.read:
            yield Question(f"columns of frame {name}", partial(self._check_copied, name), ("frames",))

    def _told(self) -> Answer:
        assert self._frames is not None, "asked only if there is one"
        if self._schema is None or self._spark is None:
            raise NotAsked(NO_COLUMNS if self._schema is None else NO_SESSION)
        frames = self._made
        told = "; ".join(f"{name}: {', '.join(frames[name].columns)}" for name in sorted(frames))
        return Answer(told, self._frames.cautions(frames))

    def _check_copied(self, name: str) -> None:
        assert self._spark is not None, "asked only after the frames are known"
        check_schema(self._of_frames[name], case_sensitive=is_case_sensitive(self._spark))

    @cached_property
    def _of_frames(self) -> Mapping[str, StructType]:
        return {name: frame.schema for name, frame in self._made.items()}

    @cached_property
    def _made(self) -> Mapping[str, DataFrame]:
        assert self._frames is not None, "a pipeline without it refuses sinks that get a frame"
        assert self._schema is not None, "known() is asked where it may be unknown"
        if self._spark is None:
            raise Misconfigured(
                "the columns of frames= are found by calling it with a DataFrame, and no Spark session runs here",
                help="make a session first, configured like the query's",
            )
        return self._frames.without_rows(self._schema, self._spark)


def _checked(frames: object) -> Mapping[str, DataFrame]:
    from pyspark.sql import DataFrame

    if not isinstance(frames, Mapping):
        raise Misconfigured(f"frames= returned {type(frames).__name__}, not a dict of DataFrames", help=_RETURN)
    seen: dict[str, str] = {}
    for name, frame in frames.items():
        if not isinstance(name, str):
            raise Misconfigured(f"frames= returned a frame named {name!r}, which is no text", help=_RETURN)
        check_name("frame", name)
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise Misconfigured(
                f"frames= returned two frames of one name, {other!r} and {name!r}",
                help="give them names that differ in more than upper and lower case",
            )
        if not isinstance(frame, DataFrame):
            raise Misconfigured(f"frame {name!r} is no DataFrame", state=type(frame).__name__, help=_RETURN)
        if frame.isStreaming:
            raise Misconfigured(
                f"frame {name!r} is a streaming DataFrame",
                help="make the frames of the micro-batch that the function gets, not of the stream",
            )
    return frames


def _without_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame with this schema, on which every action fails.

    It is made of an RDD, about which Spark's optimizer knows nothing: an empty DataFrame would let many actions pass.
    """
    nothing: Any = spark.sparkContext.parallelize([0], 1).map(_refuse)
    return spark.createDataFrame(nothing, schema, verifySchema=False)


@contextlib.contextmanager
def _no_writers(kind: type[DataFrame]) -> Iterator[None]:
    """Let this thread begin no write of a DataFrame of this class inside this scope.

    A write that replaces a folder or a table deletes it before Spark asks for the first row.
    """
    with _ONE_AT_A_TIME:
        yield from _barred(kind)


def _barred(kind: type[DataFrame]) -> Iterator[None]:
    mine = threading.get_ident()
    found = {name: inspect.getattr_static(kind, name) for name in _WRITERS if hasattr(kind, name)}

    def begin(given: Any) -> Any:
        def checked(self: DataFrame, *arguments: Any) -> Any:
            if threading.get_ident() == mine:
                raise RuntimeError(_NO_ROWS)
            return given.__get__(self, kind)(*arguments) if callable(given) else given.__get__(self, kind)

        return checked if callable(given) else property(checked)

    own = {name: vars(kind)[name] for name in _WRITERS if name in vars(kind)}
    try:
        for name, given in found.items():
            setattr(kind, name, begin(given))
        yield
    finally:
        for name in found:
            setattr(kind, name, own[name]) if name in own else delattr(kind, name)


def _refuse(_: object) -> tuple[object, ...]:
    raise RuntimeError(_NO_ROWS)


def _difference(before: StructType, now: StructType) -> str:
    """Return how two schemas differ, but for what may be NULL; "" if they do not."""
    was, is_now = ({field.name: relaxed(field.dataType) for field in schema.fields} for schema in (before, now))
    told = [f"no column {name}" for name in was if name not in is_now]
    told += [f"new column {name}" for name in is_now if name not in was]
    told += [
        f"{name} is {is_now[name].simpleString()}, was {kind.simpleString()}"
        for name, kind in was.items()
        if name in is_now and is_now[name] != kind
    ]
    if not told and list(was) != list(is_now):
        told = [f"columns in the order {', '.join(is_now)}, was {', '.join(was)}"]
    return "; ".join(told)
