"""Who may import whom, read from the source; and what no file of the project may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("coordinator", "checkpoints", "sinks", "chaos")
PRODUCTION = ("coordinator", "checkpoints", "sinks")

FLOORS = (
    ("coordinator/model",),
    ("coordinator/environment", "coordinator/telemetry", "checkpoints", "sinks"),
    ("coordinator/protocol", "sinks/spark"),
    ("sinks/rows", "sinks/kafka/wire", "sinks/kafka/batches"),
    ("sinks/kafka/delivery",),
    ("sinks/postgres", "sinks/kafka", "sinks/delta"),
    ("coordinator/query",),
    ("coordinator/console",),
    ("chaos/servers", "chaos/observe", "chaos/contract"),
    ("chaos/simulate", "chaos/strike", "chaos/report", "chaos/mutants"),
    ("chaos/job", "chaos/trial"),
    ("chaos/campaign", "chaos/demo"),
    ("chaos",),
    ("benchmarks",),
)
"""The rooms, lowest floor first.  A file imports its own room and rooms of lower floors, and no others."""

DOORS = {"epochal.sinks"}
"""Packages whose ``__init__`` imports rooms above it, each only when a user asks for it."""

CONCRETE = ("epochal.sinks.postgres", "epochal.sinks.kafka", "epochal.sinks.delta", "epochal.sinks.memory")
# What is imported where neither Spark nor a client library is installed.
CORE = {f"epochal.coordinator.model.{name}" for name in ("epoch", "errors", "events", "failpoints", "log_keys")} | {
    "epochal.coordinator.environment.lazy",
    "epochal.coordinator.environment.moved",
    "epochal.coordinator.environment.versions",
    "epochal.sinks.epochs",
    "epochal.sinks.protocol",
    "epochal.checkpoints.log",
}


def modules(*folders: str) -> Iterator[tuple[str, Path]]:
    """Module name -> file, for every module below these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(("epochal", *(part for part in parts if part != "__init__"))), path


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """What a file imports, and whether only for the type checker."""
    tree = ast.parse(path.read_text(), str(path))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((_imported(base, alias.name), node in typing_only) for alias in node.names)


def _imported(base: str, name: str) -> str:
    """`from epochal.sinks import protocol` imports the module, `from epochal.sinks.protocol import Sink` a name."""
    if not base.startswith("epochal"):
        return base
    path = ROOT.joinpath(*base.split(".")[1:], name)
    return f"{base}.{name}" if path.with_suffix(".py").is_file() or path.is_dir() else base


def own_imports(path: Path) -> set[str]:
    return {name for name, _ in imports(path) if name == "epochal" or name.startswith("epochal.")}


ALL = [pytest.param(name, path, id=name) for name, path in modules(*FOLDERS)]
IN_PRODUCTION = [pytest.param(name, path, id=name) for name, path in modules(*PRODUCTION)]
TESTS = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in sorted((ROOT / "tests").rglob("*.py"))]


def room(name: str) -> str:
    """The folder of a module, as ``FLOORS`` writes it."""
    path = ROOT.joinpath(*name.split(".")[1:])
    return str((path if path.is_dir() else path.parent).relative_to(ROOT))


def floor(of: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if of in rooms)


def wrong_imports(name: str, imported: Iterable[str]) -> list[str]:
    """What a module imports although its room may not."""
    own = room(name)
    return [other for other in imported if room(other) != own and floor(room(other)) >= floor(own)]


def test_every_room_has_a_floor_and_says_which_question_it_answers() -> None:
    rooms = {room(name) for name, _ in modules(*FOLDERS)} - {"coordinator"}
    assert rooms == {each for floor_ in FLOORS for each in floor_} - {"benchmarks"}
    parts = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("benchmarks/**/__init__.py")}
    assert len(parts) >= 5
    for each in rooms | parts:
        text = ast.get_docstring(ast.parse((ROOT / each / "__init__.py").read_text()))
        assert text is not None, each
        assert "?" in text.split("\n\n")[0], f"{each}/__init__.py begins with the question that the folder answers"


@pytest.mark.parametrize(("name", "path"), ALL)
def test_the_project_is_imported_under_one_name(name: str, path: Path) -> None:
    outside = [found for found, _ in imports(path) if found.split(".")[0] in FOLDERS or found.startswith(".")]
    assert not outside, f"{name}: write `epochal.` before {outside}"


@pytest.mark.parametrize("path", TESTS)
def test_tests_import_the_project_under_one_name(path: Path) -> None:
    assert not [found for found, _ in imports(path) if found.split(".")[0] in FOLDERS]


@pytest.mark.parametrize(("name", "path"), [pytest.param(*p.values, id=p.id) for p in ALL if p.values[0] not in DOORS])
def test_no_import_points_to_the_same_floor_or_up(name: str, path: Path) -> None:
    assert wrong_imports(name, own_imports(path) - {"epochal"}) == []


@pytest.mark.parametrize(
    ("name", "barred"),
    [
        ("epochal.coordinator.model.errors", "epochal.sinks.protocol"),
        ("epochal.sinks.protocol", "epochal.coordinator.protocol.judge"),
        ("epochal.checkpoints.log", "epochal.sinks.protocol"),
        ("epochal.sinks.memory", "epochal.coordinator.protocol.coordinator"),
        ("epochal.sinks.postgres.sink", "epochal.sinks.kafka.sink"),
        ("epochal.coordinator.protocol.coordinator", "epochal.sinks.postgres.sink"),
        ("epochal.coordinator.protocol.judge", "epochal.coordinator.query.spark"),
        ("epochal.coordinator.protocol.coordinator", "epochal.coordinator.console.render"),
        ("epochal.coordinator.console.cli", "epochal.chaos.cli"),
        ("epochal.chaos.observe.readers", "epochal.chaos.campaign.campaign"),
    ],
)
def test_an_import_that_points_the_other_way_is_noticed(name: str, barred: str) -> None:
    assert wrong_imports(name, [barred]) == [barred]


@pytest.mark.parametrize(("name", "path"), IN_PRODUCTION)
def test_a_query_knows_no_concrete_sink_and_a_log_no_other_log(name: str, path: Path) -> None:
    found = own_imports(path)
    if name.startswith(("epochal.coordinator.query.", "epochal.coordinator.protocol.")):
        assert not [other for other in found if other.startswith(CONCRETE)]
    logs = {f"epochal.checkpoints.{log}" for log in ("memory", "files", "hadoop", "objects", "postgres")}
    if name in logs:
        assert not found & (logs - {name})


def test_no_two_files_import_each_other() -> None:
    found = {name: own_imports(path) for name, path in modules(*FOLDERS)}
    assert circles(found) == []


def circles(found: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    return sorted((a, b) for a, others in found.items() for b in others if a < b and a in found.get(b, ()))


def test_a_circle_is_noticed() -> None:
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == [("a", "b")]


ADMIN = "AdminClient"
"""confluent_kafka's client for topics and settings.

A request that fails leaves it in a circle of references.  Then the garbage collector destroys it, maybe in a thread of
the client itself, and librdkafka ends the process."""
DESTROYS = "sinks/kafka/client.py"
"""Where a context manager destroys it."""


def admins_left_behind(source: str) -> list[int]:
    """The lines that make such a client and do not destroy it at the end of a ``with``."""
    nodes = list(ast.walk(ast.parse(source)))
    kept = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
    made = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == ADMIN)
    return [node.lineno for node in made if id(node) not in kept]


def test_every_admin_client_is_destroyed_where_it_was_used() -> None:
    """In all that is committed: a collector that runs by chance ends the process of whoever comes later."""
    files = [path for path in tracked() if path.suffix == ".py" and str(path.relative_to(ROOT)) != DESTROYS]
    left = {str(path.relative_to(ROOT)): admins_left_behind(path.read_text()) for path in files}
    assert {name: lines for name, lines in left.items() if lines} == {}


def test_an_admin_client_that_is_left_behind_is_noticed() -> None:
    assert admins_left_behind(f"with admin.{ADMIN}(x) as a:\n    b\nc = {ADMIN}(y)\n{ADMIN}(z).list_topics()") == [3, 4]


WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "date.today"}
NOTES = {
    ("epochal.sinks.delta.core", "time.time"),  # Delta's `lastUpdated`, which nobody reads
    ("epochal.sinks.kafka.voting", "time.time"),  # the records' timestamp, as every producer sets it
    ("epochal.sinks.clocks", "time.time"),  # how far another clock is from this one, told to people
    ("epochal.coordinator.query.operate", "datetime.datetime.now"),  # when a person said it, told to people
    ("epochal.coordinator.console.audit", "time.time"),  # how long ago, told to people
    ("epochal.coordinator.console.txns", "time.time"),  # the same
}


def wall_clocks(source: str) -> set[str]:
    """The wall clocks that a source calls."""
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    return called & WALL_CLOCKS


@pytest.mark.parametrize(("name", "path"), IN_PRODUCTION)
def test_no_decision_reads_a_wall_clock(name: str, path: Path) -> None:
    """So a clock that jumps changes nothing: no lease, no order and no name hangs on it."""
    assert {(name, clock) for clock in wall_clocks(path.read_text())} <= NOTES


def test_a_wall_clock_is_noticed() -> None:
    assert wall_clocks("import time\nif time.time() > lease: steal()") == {"time.time"}


JAVA_BY_PARTS = re.compile(r"jvm\.(?:org|java|scala|io)\.")


@pytest.mark.parametrize(("name", "path"), IN_PRODUCTION)
def test_a_java_class_is_asked_for_by_its_whole_name(name: str, path: Path) -> None:
    """As in ``getattr(jvm, "org.apache...")``: in parts, every jar is searched for each, half a millisecond a part."""
    assert not JAVA_BY_PARTS.findall(path.read_text()), name


def test_a_java_class_in_parts_is_noticed() -> None:
    assert JAVA_BY_PARTS.search("path = self._jvm.org.apache.hadoop.fs.Path(uri)")


CORE_WITHOUT_EXTRAS = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        clients = {"pyspark", "py4j", "psycopg", "confluent_kafka", "delta", "pandas", "pyarrow", "obstore"}
        if name.split(".")[0] in clients:
            raise ImportError(f"the core imported {name}")
sys.meta_path.insert(0, Refuse())
import epochal
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in getattr(epochal, "__all__", []):
    getattr(epochal, name)
"""


def test_the_core_is_imported_without_spark_and_without_any_client_library() -> None:
    core = sorted(CORE)
    done = subprocess.run(
        [sys.executable, "-c", CORE_WITHOUT_EXTRAS, *core], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


# Home and work directories of one machine; built so that this file does not contain what it looks for.
HOMES = ("work", "root", r"home/\w+", r"Users/\w+")
MACHINE_PATH = re.compile(rf"(?<![\w.}}])/(?:{'|'.join(HOMES)})/[\w.]")


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        if path.is_file() and not path.is_symlink() and path.suffix not in (".png", ".gz", ".parquet"):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if MACHINE_PATH.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_the_pattern_for_machine_paths_finds_them() -> None:
    work, root = HOMES[:2]
    assert MACHINE_PATH.search(f"at /{work}/main/x")
    assert MACHINE_PATH.search(f"'/{root}/.cache'")
    assert not MACHINE_PATH.search(f"pyspark/{work}/app")
