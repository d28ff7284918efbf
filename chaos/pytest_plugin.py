"""The pytest plugin: the fixture ``chaos`` and the marker ``chaos_schedule``.  It is off by default.

It is switched on with ``--epochal-chaos``, with ``epochal_chaos = true`` in the ini file, or as a plugin by its name,
``-p epochal.chaos.pytest_plugin``.  The entry point is only ``switch``: if the plugin is off, it adds the option and
declares the marker, and does nothing else.  The first test that uses the kit imports it::

    @pytest.mark.chaos_schedule("pairs", at_most=200, seed=7)
    def test_my_sink_survives(chaos, tmp_path):
        chaos.survives(
            sinks=lambda target: [MySink(tmp_path / f"{target}.db", name="out")],
            read=lambda target: {"out": rows_of(tmp_path / f"{target}.db")},
        )

The marker takes the arguments of :class:`~epochal.chaos.trial.Plan`, in that order.  If its positional arguments are
strikes instead, they are one schedule.  A failing schedule is printed as a test that replays it.

PYTEST_DONT_REWRITE: the entry point imports this module before pytest can rewrite it, and it has no assertions.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from epochal.chaos.simulate.schedule import Schedule
    from epochal.chaos.trial import MakeSinks, Plan, Reader, Survival
    from epochal.sinks.protocol import Rows, Schema

MARKER = "chaos_schedule"
OPTION = "--epochal-chaos"
INI = "epochal_chaos"
_NAME = "epochal.chaos.pytest_plugin"
_DECLARED = (
    f"{MARKER}(faults='singles', actions=..., at_most=None, seed=0, epochs=2, lines=True): through which"
    f" schedules of faults the fixture `chaos` takes a sink (Epochal; needs {OPTION}, or {INI} = true in the ini file)"
)
_survivals = pytest.StashKey[list["Survival"]]()


class Switch:
    """The part that the entry point loads."""

    @staticmethod
    def pytest_addoption(parser: pytest.Parser) -> None:
        group = parser.getgroup("epochal")
        group.addoption(OPTION, action="store_true", default=False, help="the fixture `chaos`: sinks under faults")
        parser.addini(INI, f"as {OPTION}", type="bool", default=False)

    @staticmethod
    def pytest_configure(config: pytest.Config) -> None:
        config.addinivalue_line("markers", _DECLARED)
        asked = config.getoption(OPTION) or config.getini(INI)
        if asked and not config.pluginmanager.has_plugin(_NAME):
            config.pluginmanager.register(sys.modules[__name__], _NAME)


switch = Switch()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _DECLARED)
    config.stash[_survivals] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many schedules were played, because a test that played none proves nothing."""
    survivals = config.stash[_survivals]
    if survivals:
        played = sum(survival.schedules for survival in survivals)
        distinct = sum(len(survival.traces) for survival in survivals)
        found = sum(max(survival.found, survival.schedules) for survival in survivals)
        terminalreporter.write_line(
            f"epochal chaos: survived {played} of {found} schedules ({distinct} distinct traces)"
        )


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> Chaos:
    """Run sinks with the coordinator through schedules of faults: ``chaos.survives(sinks, read)``."""
    return Chaos(request)


class Chaos:
    """The fixture, with which one test uses the kit."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def survives(
        self,
        sinks: MakeSinks,
        read: Reader,
        *,
        rows: Callable[[Sequence[Any]], Rows] | None = None,
        schema: Schema = None,
    ) -> Survival:
        """Fail at the first schedule after which the output is not that of a run without faults.

        * ``sinks(target)`` makes new sink objects, as a process does that has just started.
        * ``read(target)`` is an independent reader.  It returns sink name -> rows, which are mappings with at least id,
          attempt and epoch.
        * ``target`` is new for every schedule.  Its name can be the name of a file, a table or a topic.
        * ``rows`` turns the kit's rows (id, attempt, epoch, n; all integers) into what the sinks take, for example a
          DataFrame.
        * ``schema`` is what the ``create`` of the sinks gets.
        """
        from epochal.chaos.trial import DidNotSurvive, Subject, survives

        __tracebackhide__ = True
        mark = self._request.node.get_closest_marker(MARKER)
        plan = plan_of(*mark.args, **mark.kwargs) if mark is not None else plan_of()
        try:
            survival = survives(Subject(sinks, read, rows, schema), plan)
        except DidNotSurvive as failed:
            replay = program(self._request.function, failed.outcome.schedule, plan)
            self._request.node.add_report_section("call", "epochal chaos: the schedule as a test", replay)
            raise
        self._request.config.stash[_survivals].append(survival)
        return survival


def plan_of(*arguments: Any, **options: Any) -> Plan:
    """Return the plan for a marker with these arguments; without arguments, every single fault."""
    from epochal.chaos.simulate.schedule import Strike
    from epochal.chaos.trial import Plan

    if arguments and all(isinstance(argument, Strike) for argument in arguments):
        return Plan(schedules=(arguments,), **options)
    return Plan(*arguments, **options)


def program(test: Callable[..., object], schedule: Schedule, plan: Plan) -> str:
    """Return the source of the test with only this schedule.  It can be pasted below the test, also in a class."""
    name = test.__name__
    lines = inspect.getsource(test)
    source = textwrap.dedent(lines)
    settings = f"    epochs={plan.epochs},\n" + ("" if plan.lines else "    lines=False,\n")
    strikes = "".join(f"    Strike({s.driver!r}, {s.number}, {s.action}),\n" for s in schedule)
    # pytest uses the marker next to the function.
    body = source[source.index(f"def {name}(") :].replace(f"def {name}(", f"def {name}_replayed(", 1)
    text = (
        f"# Put this below {name}, and run it with {OPTION}:\n"
        "from epochal.chaos.simulate.schedule import Action, Strike\n\n\n"
        f"@pytest.mark.{MARKER}(\n{strikes}{settings})\n{body}"
    )
    return textwrap.indent(text, " " * (len(lines) - len(lines.lstrip(" "))))
