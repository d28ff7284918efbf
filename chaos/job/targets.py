"""The target under test: an Epochal sink, a pipeline, or a function for ``foreachBatch``, named ``module:thing``."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.chaos.job.moments import Moments
from epochal.chaos.observe.readers import SinkReader, reader_of
from epochal.chaos.observe.roles import Output, Reader, Readers, RoleError
from epochal.coordinator.model.epoch import IDEMPOTENT
from epochal.coordinator.query.pipeline import Pipeline
from epochal.sinks.protocol import ApplySink, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUN = "EPOCHAL_CHAOS_RUN"
"""Environment variable with a name that only this run has.  Targets can use it for their table or app."""

BatchFunction = Callable[["DataFrame", int], None]


class Usage(Exception):
    """The request cannot be run; nothing was tried."""


def load(named: str) -> Any:
    """Return the object named ``package.module:thing``; modules in the current folder are found, too.

    Raises Usage if there is no such object.
    """
    module, colon, name = named.partition(":")
    if not (module and colon and name):
        raise Usage(f"{named!r} is not of the form package.module:thing")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything at import
        raise Usage(f"{named!r} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise Usage(f"{named!r}: {type(error).__name__}: {error}") from error
    return found


def function(named: str, arguments: str) -> Callable[..., Any]:
    """Return a function of the user's that takes these arguments, named like ``spark, rows``.  Raises Usage."""
    found = load(named)
    if not callable(found):
        raise Usage(f"{named!r} is {found!r}, not a function of ({arguments})")
    _check_takes(found, named, arguments)
    return found  # type: ignore[no-any-return]


def _check_takes(found: Callable[..., Any], named: str, arguments: str) -> None:
    number = len(arguments.split(",")) if arguments else 0
    try:
        inspect.signature(found).bind(*[None] * number)
    except TypeError as error:
        raise Usage(f"{named!r} cannot be called with ({arguments}): {error}") from error
    except ValueError:  # a built-in function does not say what it takes
        return


def source(named: str) -> Callable[[Any, DataFrame], DataFrame] | None:
    """Return the user's function between the kit's rows and the target, if there is one."""
    return function(named, "spark, rows") if named else None


@dataclass(frozen=True)
class Target:
    """What is tested.  Spark calls ``function``.  ``pipeline`` and ``sinks`` are set if the target is one of ours."""

    name: str
    function: BatchFunction
    pipeline: Pipeline | None = None
    sinks: tuple[Sink, ...] = ()

    @property
    def ours(self) -> bool:
        return self.pipeline is not None

    @property
    def idempotent(self) -> bool:
        return self.pipeline is not None and self.pipeline.mode == IDEMPOTENT

    @property
    def moments(self) -> Moments:
        """The points that the pipeline reaches, without those of a redo: it is unknown which sinks can lose rows."""
        applied = tuple(sink.name for sink in self.sinks if self.idempotent and isinstance(sink, ApplySink))
        return Moments(tuple(sink.name for sink in self.sinks), idempotent=self.idempotent, applied=applied)


def target(named: str) -> Target:
    """Load a target.  A sink gets its own pipeline, with the run's app.  Raises Usage if it cannot be a target."""
    thing = load(named)
    if isinstance(thing, Pipeline):
        return Target(named, thing, thing, thing.sinks)
    if isinstance(thing, Sink):
        pipeline = Pipeline(app=os.environ.get(RUN, "chaos"), sinks=[thing])
        return Target(named, pipeline, pipeline, (thing,))
    if isinstance(thing, type) or not callable(thing):
        raise Usage(f"{named!r} is {thing!r}: an Epochal sink, a Pipeline or a function of (df, epoch) is needed")
    _check_takes(thing, named, "df, epoch")
    return Target(named, thing)


@dataclass(frozen=True)
class FunctionReader:
    """Reads one output with a user's function that returns its rows."""

    sink: str
    function: Callable[[], Iterable[Mapping[str, Any]]]

    def read(self) -> Output:
        return {self.sink: [self._mapping(row) for row in self.function()]}

    def _mapping(self, row: Any) -> Mapping[str, Any]:
        if isinstance(row, Mapping):
            return row
        if callable(as_dict := getattr(row, "asDict", None)):
            return dict(as_dict())
        raise RoleError(f"the reader of {self.sink!r} returned {row!r}: a mapping with at least an id is needed")


def readers(of: Target, named: Sequence[str]) -> tuple[Reader, tuple[str, ...], Sequence[SinkReader]]:
    """Return (all readers as one, the names of the outputs, the readers that can also report leftovers).

    ``named`` holds texts ``[output=]module:function``.  Without a name, an output has the name of the only sink, or is
    called ``output``.  If ``named`` is empty, our own readers read our own sinks.  Raises Usage if nobody can read.
    """
    if named:
        only = of.sinks[0].name if len(of.sinks) == 1 else "output"
        functions = [_function_reader(text, only) for text in named]
        names = tuple(reader.sink for reader in functions)
        if len(set(names)) != len(names):
            raise Usage(f"two readers of one name: {list(names)}; write name=module:function")
        return Readers(functions), names, ()
    if not of.sinks:
        raise Usage(f"{of.name!r} is a function: say with --reader package.module:function what its output holds")
    try:
        own = [reader_of(sink) for sink in of.sinks]
    except RoleError as error:
        raise Usage(str(error)) from error
    return Readers(own), tuple(sorted(reader.sink for reader in own)), own


def _function_reader(text: str, unnamed: str) -> FunctionReader:
    name, equals, named = text.rpartition("=")
    return FunctionReader(name if equals else unnamed, function(named, ""))
