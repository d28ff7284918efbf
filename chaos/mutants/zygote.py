"""A Python process that has pytest loaded and forks for every run, because a new process takes longer than most runs.

It is started as a script in a copy of the checkout, and imports nothing of the project.  The fork imports the code
under test from the copy, as it is at that moment.  The process reads one JSON object per line:

    {"tests": [ids, in this order] or null, "paths": [...], "seconds": s, "each": [s, ...], "record": path or null,
     "java": {"port": n, "secret": s} or null}

and answers each with one: ``{"code": pytest's, "red": [test, phase, text] or null, "ran": n, ...}``.  With
``record`` all tests run, also after a failure, and that file gets which test reached which line (``reach.py``).
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this script

import pytest

if TYPE_CHECKING:
    import coverage

HUNG = -9
"""Used instead of pytest's exit code if the run did not end in time."""
FOLDERS = ("coordinator", "checkpoints", "sinks")
READ_SOURCE = (
    "project/test_architecture",
    "project/test_packaging",
    "chaos/mutants/test_planted",
    "chaos/mutants/test_mutants",
)
"""Files of tests/pure that read the project's text or git, and would notice every change."""


class Chosen:
    """The pytest plugin of one run: it selects and orders the tests, and keeps the failures."""

    def __init__(self, tests: list[str] | None, limits: list[float]) -> None:
        self.tests = tests
        self.limits = dict(zip(tests or (), limits, strict=True))
        self.red: tuple[str, str, str] | None = None
        self.all_red: list[tuple[str, str]] = []
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep only the requested tests, in their order."""
        if self.tests is not None:
            found = {item.nodeid: item for item in items}
            items[:] = [found[test] for test in self.tests if test in found]
            if items and items[0].config.pluginmanager.hasplugin("timeout"):
                for item in items:
                    item.add_marker(pytest.mark.timeout(self.limits[item.nodeid]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported as a failure."""
        if report.failed:
            self._is_red(report.nodeid, "collect", report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep how long a test took, and whether it failed."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._is_red(report.nodeid, report.when, report.longreprtext)

    def _is_red(self, test: str, phase: str, text: str) -> None:
        self.all_red.append((test, text[-600:]))
        if self.red is None:
            self.red = (test, phase, text[-600:])


class Recorder:
    """The plugin that tells the coverage measurement which test runs now."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count set-up and tear-down as parts of the test."""
        self.measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.measured.switch_context("")


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run pytest in this process, which cannot be used again afterwards."""
    if order["java"] is not None:
        _use(**order["java"])
    chosen = Chosen(order["tests"], order["each"])
    plugins: list[object] = [chosen]
    arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=short"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the zygote has loaded plugins already
    arguments += ["-o", "timeout=900"]
    arguments += [f"--ignore=tests/pure/{name}.py" for name in READ_SOURCE]
    with contextlib.ExitStack() as stack:
        if order["record"] is None:
            arguments.append("-x")
        else:
            plugins.append(Recorder(stack.enter_context(_measured(order["record"], chosen))))
        arguments += order["options"]
        code, trouble = _main([*arguments, *order["paths"]], plugins)
    return {
        "code": code,
        "trouble": trouble,
        "red": chosen.red,
        "all_red": chosen.all_red,
        "ran": len(chosen.seconds),
        "modules": _foreign_modules() if order["record"] is not None else [],
        "outside": _own_modules_from_elsewhere(),
    }


def _main(arguments: list[str], plugins: list[object]) -> tuple[int, str]:
    """Run pytest; return its exit code and its own error.

    pytest itself may raise, for example after a thread died unnoticed.  This must not hide which test failed.
    """
    try:
        return int(pytest.main(arguments, plugins)), ""
    except Exception as error:
        return 99, repr(error)[-400:]


def _use(port: int, secret: str) -> None:
    """Let Spark sessions of this process use that Java process.  Stop a session that an earlier run left there."""
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        del os.environ[name]  # processes that a test starts must use their own Java
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    active = getattr(getattr(gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    if active.isDefined():
        active.get().stop()


@contextlib.contextmanager
def _measured(path: str, chosen: Chosen) -> Iterator[coverage.Coverage]:
    """Measure coverage in this context, then write it to ``path``.

    The file holds {"seconds": test -> seconds, "reached": file -> line -> tests}.
    """
    import coverage

    here = Path.cwd()
    measured = coverage.Coverage(
        data_file=None, config_file=False, include=[str(here / folder / "*") for folder in FOLDERS], messages=False
    )
    measured.start()
    with _bare_threads_too():
        yield measured
    measured.stop()
    data = measured.get_data()
    reached = {
        str(Path(file).relative_to(here)): {
            line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    Path(path).write_text(json.dumps({"seconds": chosen.seconds, "reached": reached}), encoding="utf-8")


@contextlib.contextmanager
def _bare_threads_too() -> Iterator[None]:
    """Let threads of ``_thread`` use the tracer that threads of ``threading`` use; the simulation's drivers need it."""
    start = _thread.start_new_thread

    def started(function: Callable[..., object], args: tuple[Any, ...]) -> int:
        def traced() -> None:
            sys.settrace(threading.gettrace())
            function(*args)

        return start(traced, ())

    _thread.start_new_thread = started  # type: ignore[assignment]
    try:
        yield
    finally:
        _thread.start_new_thread = start


def _foreign_modules() -> list[str]:
    """The modules of the run that a zygote can import in advance: none from the copy, and no plugin of pytest."""
    here = str(Path.cwd())
    plugins = {entry.value.partition(":")[0] for entry in importlib.metadata.entry_points(group="pytest11")}
    return [
        name
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and not str(file).startswith(here)
        and "pytest" not in name
        and name not in {"__main__", *plugins}
    ]


def _own_modules_from_elsewhere() -> list[str]:
    """Modules of the project that were not imported from the copy.  There must be none."""
    here = str(Path.cwd())
    return [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "epochal" and not str(getattr(module, "__file__", None) or here).startswith(here)
    ]


def fork(order: dict[str, Any]) -> dict[str, Any]:
    """Run the order in a child process; the code is ``HUNG`` if the child had to be killed."""
    read, write = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(order, write)
    os.close(write)

    def end(*_: object) -> None:
        _end(child)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    answer = _answer(read, child, began + order["seconds"])
    return {**answer, "seconds": round(time.monotonic() - began, 2)}


def _child(order: dict[str, Any], write: int) -> None:
    """Run the order, write the answer and exit.  Never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        quiet = os.open(os.environ.get("EPOCHAL_MUTANTS_OUTPUT", os.devnull), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        answer = run(order)
    except BaseException as error:
        answer = {"code": 99, "red": None, "ran": 0, "trouble": repr(error)[-400:]}
    try:
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def _answer(read: int, child: int, until: float) -> dict[str, Any]:
    """Return what the child wrote until ``until``, and kill its whole process group."""
    import select

    text = b""
    code = HUNG
    while (left := until - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            continue
        if not (part := os.read(read, 1 << 16)):
            code = 99
            break
        text += part
    os.close(read)
    _end(child)
    os.waitpid(child, 0)
    if code == HUNG:
        return {"code": HUNG, "red": None, "ran": 0}
    return dict(json.loads(text)) if text else {"code": 99, "red": None, "ran": 0, "trouble": "the run died"}


def _end(child: int) -> None:
    """Kill the child and everything that it started, if it still exists."""
    for end in (os.killpg, os.kill):  # the group does not exist before the child has made it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)


def main() -> None:
    """Import the requested modules, then serve until there is no more input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a module prints must not look like an answer
    for name in json.loads(sys.stdin.readline()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(fork(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
