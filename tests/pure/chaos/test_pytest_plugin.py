"""The pytest plugin, in pytest runs of its own: off unless asked for, and what a failing schedule prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.chaos.pytest_plugin import INI, OPTION, plan_of
from epochal.chaos.simulate.schedule import Action, Strike
from epochal.chaos.trial import ACTIONS, Plan

ROOT = Path(__file__).parents[3]
MODULE = "epochal.chaos.pytest_plugin"
ON = {
    "option": (OPTION,),
    "ini": ("-o", f"{INI}=true"),
    "module": ("-p", MODULE),
    "option and module": (OPTION, "-p", MODULE),
    "entry point by its name": ("-p", "epochal_chaos", OPTION),
}

LOADED = """
import sys
def test_loaded():
    kit = [name for name in sys.modules if name.startswith("epochal.chaos.")]
    assert kit == ["epochal.chaos.pytest_plugin"], kit
    assert not {"pyspark", "py4j", "pyarrow", "pandas", "psycopg", "confluent_kafka"} & sys.modules.keys()
"""
USES_IT = """
import pytest
@pytest.mark.chaos_schedule("singles")
def test_uses_it(chaos):
    assert chaos.survives
"""
MEMORY = """
import pytest
from epochal.sinks.memory import MemoryServer, MemorySink
from epochal.sinks.protocol import CommitOutcome

class MySink(MemorySink):
    def commit(self, committable, by):
        {commit}

@pytest.fixture
def servers():
    return {{}}

class Here:
    @pytest.mark.chaos_schedule("singles", epochs=1)
    @pytest.mark.usefixtures("servers")
    def test_my_sink_survives(self, chaos, servers):
        def server(target):
            return servers.setdefault(target.name, MemoryServer())

        chaos.survives(
            sinks=lambda target: [MySink("out", server(target))],
            read=lambda target: {{"out": server(target).visible(target.app, "out")}},
        )
"""
RIGHT = "return super().commit(committable, by)"
WRONG = "return lies(super().commit, committable, by)"
LIES = """
def lies(commit, committable, by):
    'Answers for what an older start prepared without looking whether it is there.'
    return commit(committable, by) if committable.decision.actor == by else CommitOutcome.ALREADY_COMMITTED
"""


@pytest.fixture
def entry_point(tmp_path: Path) -> Path:
    """A folder that, on the path, is a package with the project's entry point."""
    metadata = tmp_path / "site" / "epochal_chaos-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: epochal-chaos\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\nepochal_chaos = {MODULE}:switch\n")
    return metadata.parent


def run(site: Path, test: str, *options: str) -> tuple[int, str]:
    """Exit status and output of pytest over one file, in a project of its own."""
    project = site.parent / "project"
    project.mkdir(exist_ok=True)
    (project / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    (project / "test_it.py").write_text(test)
    path = os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *options],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


# --- off and on -------------------------------------------------------------------------------------


def test_a_run_that_does_not_ask_loads_neither_spark_nor_the_kit(entry_point: Path) -> None:
    code, said = run(entry_point, LOADED)
    assert code == 0, said


@pytest.mark.slow
def test_even_a_run_that_asks_loads_the_kit_only_when_a_test_uses_it(entry_point: Path) -> None:
    code, said = run(entry_point, LOADED, OPTION)
    assert code == 0, said


@pytest.mark.slow
def test_off_there_is_no_fixture_and_the_marker_is_known_and_says_how(entry_point: Path) -> None:
    code, said = run(entry_point, USES_IT)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "fixture 'chaos' not found" in said
    _, markers = run(entry_point, USES_IT, "--markers")
    assert f"needs {OPTION}, or {INI} = true" in markers


@pytest.mark.slow
@pytest.mark.parametrize("options", ON.values(), ids=ON)
def test_on_there_is(entry_point: Path, options: tuple[str, ...]) -> None:
    code, said = run(entry_point, USES_IT, *options)
    assert code == 0, said


@pytest.mark.slow
def test_a_conftest_may_ask_too(entry_point: Path) -> None:
    project = entry_point.parent / "project"
    project.mkdir()
    (project / "conftest.py").write_text(f"pytest_plugins = [{MODULE!r}]\n")
    code, said = run(entry_point, USES_IT)
    assert code == 0, said


# --- what it says -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sink_that_survives_is_counted(entry_point: Path) -> None:
    code, said = run(entry_point, MEMORY.format(commit=RIGHT), OPTION, "-o", "python_classes=Here")
    assert code == 0, said
    counted = re.search(r"epochal chaos: survived (\d+) of \d+ schedules \((\d+) distinct traces\)", said)
    assert counted is not None
    assert int(counted[1]) > 100


@pytest.mark.slow
def test_a_failing_schedule_is_printed_as_a_test_that_replays_it(entry_point: Path) -> None:
    broken = MEMORY.format(commit=WRONG)
    code, said = run(entry_point, broken + LIES, OPTION, "-o", "python_classes=Here")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    verdict = re.search(r"DidNotSurvive: (.+ at event \d+ of d1)\nE +(I\d+: .+)", said)
    assert verdict is not None, said
    program = _program(said)
    again, replayed = run(entry_point, broken + program + LIES, OPTION, "-o", "python_classes=Here", "-k", "replayed")
    assert again == pytest.ExitCode.TESTS_FAILED
    assert verdict[1] in replayed
    assert verdict[2].split(":")[0] in replayed
    right = MEMORY.format(commit=RIGHT)
    mended, fine = run(entry_point, right + program, OPTION, "-o", "python_classes=Here", "-k", "replayed")
    assert mended == 0, fine
    assert "survived 1 of 1 schedules (1 distinct traces)" in fine


def _program(said: str) -> str:
    """The section of the report, as somebody copies it from the terminal."""
    section = re.search(
        r"-+ Captured epochal chaos: the schedule as a test call -+\n(.*?)^=", said, re.DOTALL | re.MULTILINE
    )
    assert section is not None, said
    return "\n" + section[1]


# --- the marker -------------------------------------------------------------------------------------


def test_without_a_marker_every_single_fault_strikes() -> None:
    assert plan_of() == Plan("singles", ACTIONS, None, 0, 2, True, ())


def test_a_marker_has_the_arguments_of_a_plan() -> None:
    assert plan_of("pairs", at_most=7, seed=3) == Plan("pairs", at_most=7, seed=3)


def test_strikes_in_a_marker_are_one_schedule() -> None:
    schedule = (Strike("d1", 7, Action.CRASH), Strike("d2", 3, Action.PAUSE))
    assert plan_of(*schedule, epochs=1) == Plan(epochs=1, schedules=(schedule,))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"faults": "triples"}, "faults='triples': known are singles, pairs"),
        ({"actions": ()}, r"actions=\(\): known are Action.CRASH"),
        ({"actions": (Action.LOSE_PREPARED,)}, "known are Action.CRASH"),
        ({"epochs": 0}, "epochs=0, at_most=None: count from 1"),
        ({"at_most": 0}, "epochs=2, at_most=0: count from 1"),
    ],
)
def test_a_plan_that_would_play_nothing_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan_of(**wrong)
