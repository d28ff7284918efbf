"""The Spark application of a sink: its session, a check that its Python workers can load our code, and its errors."""

from __future__ import annotations

import contextlib
import importlib
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.coordinator.model.epoch import EpochNumber
from epochal.coordinator.model.errors import EpochalError, Misconfigured, PrepareRefused, SinkUnavailable
from epochal.sinks.questions import Answer, NotAsked
from epochal.sinks.spark.workers import answer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterator[pa.RecordBatch]

NO_SESSION = "no Spark session runs in this process"
"""Why something is not asked."""


def running_session() -> SparkSession | None:
    """Return the Spark session of this process, from any thread; None if there is none.

    Where pyspark was never imported there is no session, and it is not imported here.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None


def clone(session: SparkSession) -> SparkSession:
    """Return a clone of the session: same catalog and settings, later changes separate.

    The session inside foreachBatch is such a clone of the query's.
    """
    return type(session)(session.sparkContext, session._jsparkSession.cloneSession())


def check_executors(
    sink: str,
    modules: Sequence[str],
    packages: str,
    reach: Callable[[], str] | None = None,
    lacking: Callable[[], str] | None = None,
) -> Answer:
    """Raise ``Misconfigured`` if an executor's Python cannot import ``modules``, or lacks what a task needs to answer.

    ``packages``: what to ``pip install`` there, for the message.  ``lacking`` and ``reach`` run on the executor, too.
    ``lacking`` returns what else cannot be loaded there, or an empty text.  ``reach`` returns why the server cannot be
    reached (then ``SinkUnavailable``), or an empty text.  Only one executor is asked, for all of them.  Where no Spark
    runs nothing is checked (``NotAsked``).  Return what the executor has.
    """
    spark = running_session()
    if spark is None:
        raise NotAsked(NO_SESSION)
    one = spark.range(1, numPartitions=1)
    probe = one.mapInArrow(partial(_ask, modules, reach, lacking), "missing string, unreached string, found string")
    missing, unreached, found = _answer(probe, modules[0])
    if unreached:
        raise SinkUnavailable(
            f"an executor has no connection: {unreached}",
            sink=sink,
            state="one task was asked; nothing was written",
            help="the server, and every file that the connection names (certificates, keys), must be found from each"
            " executor as from the driver",
        )
    if missing:
        raise Misconfigured(
            f"the executors' Python cannot load {missing}",
            sink=sink,
            state="one task was asked; nothing was written",
            help=f"pip install {packages} on every executor",
        )
    return Answer(found, _other_epochal(found))


def _other_epochal(found: str) -> list[str]:
    ours = _version("epochal")
    if ours in found.split(", "):
        return []
    return [f"the driver has {ours} and an executor has {found}: install the same version of Epochal on both"]


def lacks_epochal(error: Exception) -> bool:
    """Return whether a Spark job failed because a worker could not import Epochal.

    Spark sends our functions by name, so the worker must import them.
    """
    return "No module named 'epochal" in str(error)


def lacked_by_a_worker(error: Exception) -> str:
    """Return what a worker needed and lacked before it came to our code, if a Spark job failed for that; else ""."""
    if lacks_epochal(error):
        return "Epochal is not installed there"
    found = _NO_ARROW.search(str(error))
    return found.group() if found is not None else ""


def error_of_a_worker(error: Exception, epoch: EpochNumber) -> EpochalError | None:
    """Return Epochal's error if a worker has raised one, else None.  From Spark only its text arrives."""
    found = next(filter(None, (_RAISED.search(str(each)) for each in causes(error, contexts=True))), None)
    if found is None:
        return None
    name, sink, what, state, remedy = found.groups()
    kind = PrepareRefused if name == PrepareRefused.__name__ else SinkUnavailable
    return kind(what, sink=sink, epoch=epoch, state=state, help=remedy)


def causes(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from, each once, also if they name each other.

    ``contexts``: if an error was raised from no other, go on with the one that was handled then.
    """
    seen: list[BaseException] = []
    while error is not None and all(error is not each for each in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or (error.__context__ if contexts else None)


_RAISED = re.compile(
    rf"{PrepareRefused.__module__}\.(PrepareRefused|SinkUnavailable): (?:sink '([^']+)': )?(.*)"
    r"(?:\n\s*State: (.*))?\n\s*Help: (.*)"
)


@contextlib.contextmanager
def telling(epoch: EpochNumber) -> Iterator[None]:
    """Raise Epochal's error if a worker has raised one in a Spark job of this scope."""
    try:
        yield
    except EpochalError:
        raise
    except Exception as error:
        told = error_of_a_worker(error, epoch)
        if told is None:
            raise
        raise told from error


def first_cause(error: Exception) -> str:
    """Return the text of the innermost cause in the JVM; of a Python error its type and its text."""
    throwable = _innermost(error)
    return str(throwable.toString()) if throwable is not None else f"{type(error).__name__}: {error}"


def sql_state(error: Exception) -> str:
    """Return the SQL state of the innermost cause in the JVM; "": it has none."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    throwable = _innermost(error)
    try:
        return str(throwable.getSqlState() or "") if throwable is not None else ""
    except Py4JNetworkError:
        raise
    except Py4JError:  # only Spark's own errors have the method
        return ""


def _innermost(error: Exception) -> Any:
    """Return the innermost cause in the JVM; None if nothing of the error comes from there."""
    throwable: Any = next(filter(None, map(_throwable, causes(error))), None)
    while throwable is not None and (cause := throwable.getCause()) is not None:
        throwable = cause
    return throwable


def _throwable(error: BaseException) -> Any:
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def _answer(probe: DataFrame, module: str) -> tuple[str, str, str]:
    """Run the probe; return the missing module, why the server is not reached, and what is there, each maybe empty.

    If Epochal or pyarrow is missing on the executor, the task fails before it can try to import ``module``.  Then this
    text is made from the failure.
    """
    try:
        ((missing, unreached, found),) = probe.collect()
        return missing, unreached, found
    except Exception as error:
        if lacking := lacked_by_a_worker(error):
            return f"{module}: {lacking}", "", ""
        raise


_NO_ARROW = re.compile(r"No module named 'pyarrow[\w.]*'|\[PACKAGE_NOT_INSTALLED\].*")  # Spark's tasks need it first


def _ask(
    modules: Sequence[str], reach: Callable[[], str] | None, lacking: Callable[[], str] | None, batches: Batches
) -> Batches:
    """Answer the probe, in a worker.  This is a module-level function, so that the worker must import Epochal."""
    for _ in batches:
        pass
    missing = next(filter(None, map(_missing, modules)), "") or (lacking() if lacking is not None else "")
    unreached = reach() if reach is not None and not missing else ""
    found = "" if missing else ", ".join([f"Python {platform.python_version()}", *map(_version, (*_ALWAYS, *modules))])
    yield answer(missing=missing, unreached=unreached, found=found)


def _missing(module: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"{module}: {error}"
    return ""


_ALWAYS = ("epochal", "pyarrow")


def _version(module: str) -> str:
    return f"{module} {getattr(importlib.import_module(module), '__version__', '(version unknown)')}"
