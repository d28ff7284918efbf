"""Which test reaches which line.  This is recorded once per state of the checkout, and kept.

Code in a Spark executor or in another process is not recorded.  So a line that no test is known to reach is tested with
all tests of its part (``PARTS``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from epochal.chaos.mutants import checkout
from epochal.chaos.mutants.operators import Mutant
from epochal.chaos.mutants.runner import Runner
from epochal.chaos.mutants.warm import NOT_OURS, Servers
from epochal.chaos.servers.cache import cache_dir

FAST = ("tests/pure",)
"""These tests need neither Spark nor a server."""
PARTS = {
    "sinks/postgres": "tests/real/sinks/postgres",
    "sinks/kafka": "tests/real/sinks/kafka",
    "sinks/delta": "tests/real/sinks/delta",
    "sinks/rows": "tests/real/sinks/rows",
    "sinks/spark": "tests/real/sinks/spark",
    "checkpoints/postgres": "tests/real/checkpoints/test_postgres_log.py",
    "checkpoints/hadoop": "tests/real/checkpoints/hadoop",
    "coordinator/console": "tests/real/coordinator/console",
    "coordinator": "tests/real/coordinator/query",
}
"""How a file's name begins, and the tests on servers for it.  The first fitting line counts."""
SERVERS = tuple(PARTS.values())
VERSION = 2


@dataclass
class Reach:
    """The recording.

    * ``seconds``: how long each test took.
    * ``reached``: file -> line -> tests.
    * ``red``: tests that fail without a mutant.
    * ``modules``: modules to import in advance.
    * ``alone``: tests that need their own server, because they stop it or put a proxy in front of it.
    """

    suite: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    red: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all tests were recorded.  Then a line that no test reaches is really not tested."""
        return {*FAST, *SERVERS} <= set(self.suite)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach any line of the mutant, else those of its part; the quick ones first."""
        lines = self.reached.get(mutant.file, {})
        found = {test for n in range(mutant.line, mutant.end_line + 1) for test in lines.get(str(n), ())}
        return sorted(found or self._of_its_part(mutant), key=lambda test: (self.seconds.get(test, 0.0), test))

    def _of_its_part(self, mutant: Mutant) -> set[str]:
        return {test for test in self.seconds if test.startswith(_part(mutant)) and test not in self.alone}

    def alone_for(self, mutant: Mutant) -> list[str]:
        """Return the tests of its part that need their own server.  It is unknown which lines they reach."""
        return sorted(test for test in self.alone if test.startswith(_part(mutant)))

    def add(self, other: Reach) -> None:
        """Add a recording of other tests."""
        self.suite += other.suite
        self.seconds |= other.seconds
        self.red += other.red
        self.alone += other.alone
        self.modules += [name for name in other.modules if name not in self.modules]
        for file, lines in other.reached.items():
            for line, tests in lines.items():
                self.reached.setdefault(file, {}).setdefault(line, []).extend(tests)


def _part(mutant: Mutant) -> str:
    return next((tests for start, tests in PARTS.items() if mutant.file.startswith(start)), "-")


def is_slow(test: str) -> bool:
    """Return whether the test starts Spark or a server."""
    return not test.startswith(FAST)


def needs_spark(test: str) -> bool:
    """Return whether the test may need Spark.

    The tests of the epoch log in Postgres need none.  Every other folder of integration tests has some that do.
    """
    return is_slow(test) and not test.startswith("tests/real/checkpoints/test_")


def recorded(root: Path, suite: Sequence[str], tell: Callable[[str], None], options: Sequence[str] = ()) -> Reach:
    """Return the kept recording for this state of the checkout, or make one by running all tests below ``suite``.

    ``options`` are options of pytest that leave tests out.
    """
    fast = tuple(path for path in suite if not is_slow(path))
    reach = Reach()
    for paths in filter(None, (fast, *((path,) for path in suite if is_slow(path)))):
        kept = cache_dir() / "mutants" / f"reach-{_state(root, paths, options)}.json"
        if kept.is_file():
            reach.add(Reach(paths, **json.loads(kept.read_text(encoding="utf-8"))))
            continue
        tell(f"recording which test of {' '.join(paths)} reaches which line, with nothing planted")
        new = _record(root, paths, options)
        if not new.red:
            _keep(kept, new)
        reach.add(new)
    return reach


def _keep(kept: Path, reach: Reach) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in sorted(kept.parent.glob("reach-*.json"), key=lambda p: p.stat().st_mtime)[:-24]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    whole = kept.with_suffix(".tmp")
    data = {"seconds": reach.seconds, "reached": reach.reached, "modules": reach.modules, "alone": reach.alone}
    whole.write_text(json.dumps(data), encoding="utf-8")
    whole.replace(kept)


def _record(root: Path, paths: tuple[str, ...], options: Sequence[str]) -> Reach:
    slow = is_slow(paths[0])
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(Servers()) if slow else None
        tree = stack.enter_context(checkout.fresh_copy(root))
        runner = stack.enter_context(Runner(root, tree, servers=servers))
        file = tree / ".reach.json"
        answer = runner.run(None, paths, seconds=7200, record=file, spark=needs_spark(paths[0]), options=options)
        if not file.is_file() or answer.outside or not answer.ran:
            raise RuntimeError(f"the tests could not be run with nothing planted: {answer}")
        data = json.loads(file.read_text(encoding="utf-8"))
    alone = sorted({test for test, text in answer.all_red if NOT_OURS in text})
    red = sorted({test for test, _ in answer.all_red} - {*alone})
    reached = {
        file: {line: [test for test in tests if test not in alone] for line, tests in lines.items()}
        for file, lines in data["reached"].items()
    }
    return Reach(paths, data["seconds"], reached, red, list(answer.modules), alone)


def _state(root: Path, paths: Iterable[str], options: Sequence[str]) -> str:
    """A hash of everything that a recording of ``paths`` depends on, which is all code but the other tests."""
    folders = tuple(paths)
    digest = hashlib.sha256(f"{VERSION} {' '.join((*folders, *options))}\n".encode())
    kinds = (
        ".py",
        ".toml" if options else "pyproject.toml",
    )  # tests/thinned.toml and tests/planted say what is left out
    for name in checkout.files(root):
        is_test = PurePath(name).name.startswith("test_")
        if not name.endswith(kinds) or name.startswith("chaos/mutants/"):
            continue
        if (root / name).is_symlink() or (is_test and not name.startswith(folders)):
            continue
        digest.update(f"{name}\n".encode() + hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()[:16]
