"""Who may import whom, read from the source; and what no file of the project may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("coordinator", "checkpoints", "sinks", "chaos")
PRODUCTION = ("coordinator", "checkpoints", "sinks")

# Free of everything else of the project; any file may import them.
WORDS = {f"epochal.coordinator.{name}" for name in ("epoch", "errors", "imports", "log_keys", "versions")} | {
    "epochal.sinks.epochs"
}
FAILPOINTS = {"epochal.chaos.failpoints"}
PROTOCOLS = {"epochal.sinks.protocol", "epochal.checkpoints.log"}
COMMAND = "epochal.coordinator.cli"  # the console command, of which the chaos kit is a part
SPARK_SIDE = {f"epochal.coordinator.{name}" for name in ("plan", "lint", "spark", "pipeline", "operate")} | {COMMAND}


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


def allowed(name: str) -> set[str] | None:
    """The modules of the project that `name` may import; None: any."""
    if name in WORDS:
        return WORDS
    if name in PROTOCOLS:
        return WORDS
    if name.startswith(("epochal.sinks.", "epochal.checkpoints.")):
        folder = {other for other, _ in modules(name.split(".")[1])}
        protocol = {"epochal.sinks.protocol"} if name.startswith("epochal.sinks.") else {"epochal.checkpoints.log"}
        return WORDS | FAILPOINTS | protocol | _helpers(name, folder)
    if name in ("epochal.sinks", "epochal.checkpoints", "epochal.coordinator") or _is_spark_side(name):
        return None
    if name.startswith("epochal.coordinator."):
        core = {other for other, _ in modules("coordinator") if not _is_spark_side(other)}
        return WORDS | FAILPOINTS | PROTOCOLS | core
    return None


def _is_spark_side(name: str) -> bool:
    """What brings core, Spark and sinks together; the console command is beside it, and starts no Spark."""
    return name in SPARK_SIDE or name.startswith("epochal.coordinator.console")


def _helpers(name: str, folder: set[str]) -> set[str]:
    """What a concrete sink or log may share with its neighbours: the helpers, and the files of its own subfolder."""
    concrete = {"memory", "postgres", "kafka", "delta", "files", "hadoop"}
    own = ".".join(name.split(".")[:3])
    return {
        other
        for other in folder
        if other == own
        or other.startswith(f"{own}.")
        or (other.count(".") >= 2 and other.split(".")[2] not in concrete)
    }


def test_the_lists_above_name_modules_that_exist() -> None:
    known = {name for name, _ in modules(*FOLDERS)}
    assert known >= WORDS | FAILPOINTS | PROTOCOLS


@pytest.mark.parametrize(("name", "path"), ALL)
def test_the_project_is_imported_under_one_name(name: str, path: Path) -> None:
    outside = [found for found, _ in imports(path) if found.split(".")[0] in FOLDERS or found.startswith(".")]
    assert not outside, f"{name}: write `epochal.` before {outside}"


@pytest.mark.parametrize("path", TESTS)
def test_tests_import_the_project_under_one_name(path: Path) -> None:
    assert not [found for found, _ in imports(path) if found.split(".")[0] in FOLDERS]


@pytest.mark.parametrize(("name", "path"), IN_PRODUCTION)
def test_imports_point_towards_the_protocols(name: str, path: Path) -> None:
    permitted = allowed(name)
    if permitted is not None:
        assert own_imports(path) <= permitted


@pytest.mark.parametrize(
    ("name", "barred"),
    [
        ("epochal.coordinator.errors", "epochal.sinks.protocol"),
        ("epochal.sinks.protocol", "epochal.coordinator.judge"),
        ("epochal.checkpoints.log", "epochal.sinks.protocol"),
        ("epochal.checkpoints.files", "epochal.checkpoints.memory"),
        ("epochal.sinks.memory", "epochal.coordinator.coordinator"),
        ("epochal.sinks.postgres.sink", "epochal.sinks.kafka.sink"),
        ("epochal.coordinator.coordinator", "epochal.sinks.memory"),
        ("epochal.coordinator.judge", "epochal.coordinator.spark"),
        ("epochal.coordinator.coordinator", "epochal.coordinator.console.render"),
    ],
)
def test_the_rules_bar_what_points_the_other_way(name: str, barred: str) -> None:
    permitted = allowed(name)
    assert permitted is not None
    assert barred not in permitted


@pytest.mark.parametrize(("name", "path"), IN_PRODUCTION)
def test_production_code_imports_nothing_of_chaos_but_the_failpoints(name: str, path: Path) -> None:
    chaos = {found for found in own_imports(path) if found.startswith("epochal.chaos")}
    assert chaos <= (FAILPOINTS | {"epochal.chaos.cli"} if name == COMMAND else FAILPOINTS), name


WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "date.today"}
NOTES = {
    ("epochal.sinks.delta.sink", "time.time"),  # Delta's `lastUpdated`, which nobody reads
    ("epochal.coordinator.operate", "datetime.datetime.now"),  # when a person said it, told to people
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


def test_failpoints_import_nothing_that_is_not_a_word_of_the_project() -> None:
    assert own_imports(ROOT / "chaos" / "failpoints.py") <= WORDS


CORE_WITHOUT_EXTRAS = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyspark", "py4j", "psycopg", "confluent_kafka", "delta", "pandas", "pyarrow"}:
            raise ImportError(f"the core imported {name}")
sys.meta_path.insert(0, Refuse())
import epochal
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in getattr(epochal, "__all__", []):
    getattr(epochal, name)
"""


def test_the_core_is_imported_without_spark_and_without_any_client_library() -> None:
    core = sorted(WORDS | FAILPOINTS | PROTOCOLS)
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


def test_every_test_file_is_in_one_lane_of_make_test() -> None:
    """A file that no lane names would silently never run."""
    makefile = (ROOT / "Makefile").read_text()
    fast = makefile.partition("FAST   :=")[2].split("\n")[0]
    lanes = [lane.replace("$(FAST)", fast) for lane in re.findall(r"^lane-\w+:\n\t((?:.*\\\n)*.*)", makefile, re.M)]
    assert len(lanes) == 3
    elsewhere = {"containers", "browser", "matrix"}
    files = [p.relative_to(ROOT) for p in (ROOT / "tests").rglob("test_*.py") if p.parent.name not in elsewhere]
    counted = {str(file): sum(_runs(lane, file) for lane in lanes) for file in files}
    assert {file: times for file, times in counted.items() if times != 1} == {}


def _runs(lane: str, file: Path) -> bool:
    names = {str(file), *map(str, file.parents)}
    ignored = set(re.findall(r"--ignore=(\S+)", lane))
    return bool(names & set(lane.split())) and not names & ignored
