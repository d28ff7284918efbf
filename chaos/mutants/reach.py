"""Which test reaches which line, recorded once per state of the checkout, and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epochal.chaos.mutants import checkout
from epochal.chaos.mutants.operators import Mutant
from epochal.chaos.mutants.runner import Runner
from epochal.chaos.servers.cache import cache_dir

VERSION = 1


@dataclass(frozen=True)
class Reach:
    """``seconds``: how long each test took; ``red``: those that fail with nothing planted; ``modules``: to preload."""

    seconds: dict[str, float]
    reached: dict[str, dict[str, list[str]]]
    red: Sequence[str] = ()
    modules: Sequence[str] = field(default=(), repr=False)

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that reach any of its lines, the quick ones first."""
        lines = self.reached.get(mutant.file, {})
        found = {test for n in range(mutant.line, mutant.end_line + 1) for test in lines.get(str(n), ())}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def knows(self, file: str) -> bool:
        """Whether any test reached any function of the file."""
        return any(tests for tests in self.reached.get(file, {}).values())


def recorded(root: Path, paths: Sequence[str], tell: Callable[[str], None]) -> Reach:
    """What is kept for this state of the checkout, else a new recording, which runs all tests below ``paths``."""
    kept = cache_dir() / "mutants" / f"reach-{_state(root, paths)}.json"
    if not kept.is_file():
        tell(f"recording which test of {' '.join(paths)} reaches which line, with nothing planted")
        reach = _record(root, paths)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(kept.parent.glob("reach-*.json"), key=lambda p: p.stat().st_mtime)[:-8]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        if not reach.red:
            _write(kept, reach)
        return reach
    data = json.loads(kept.read_text(encoding="utf-8"))
    return Reach(data["seconds"], data["reached"], (), data["modules"])


def _write(kept: Path, reach: Reach) -> None:
    whole = kept.with_suffix(".tmp")
    data = {"seconds": reach.seconds, "reached": reach.reached, "modules": list(reach.modules)}
    whole.write_text(json.dumps(data), encoding="utf-8")
    whole.replace(kept)


def _record(root: Path, paths: Sequence[str]) -> Reach:
    with checkout.fresh_copy(root) as tree, Runner(root, tree) as runner:
        file = tree / ".reach.json"
        answer = runner.run(None, paths, seconds=7200, each=900, record=file)
        if not file.is_file() or answer.outside:
            raise RuntimeError(f"the tests could not be run with nothing planted: {answer}")
        data = json.loads(file.read_text(encoding="utf-8"))
        return Reach(data["seconds"], data["reached"], answer.all_red, answer.modules)


def _state(root: Path, paths: Iterable[str]) -> str:
    """A hash of all Python files of the checkout and of what is asked."""
    digest = hashlib.sha256(f"{VERSION} {' '.join(paths)}\n".encode())
    for name in checkout.files(root):
        if name.endswith((".py", "pyproject.toml")) and not (root / name).is_symlink():
            digest.update(f"{name}\n".encode() + hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()[:16]
