"""Runs the mutants of ``operators.py``, each in a copy of the checkout, with the tests that reach its lines.

The verdict about a mutant is one of these:

* *caught*: a test fails or does not end;
* *survived*: all tests that reach it pass, or no test reaches it;
* *explained*: it survived, and ``tests/planted/README.md`` says why;
* *invalid*: the tests could not be run;
* *not run*: the time was over before.  A mutant that is not run is never called caught.
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from epochal.chaos.mutants import checkout, zygote
from epochal.chaos.mutants.operators import Mutant, mutants
from epochal.chaos.mutants.reach import FAST, SERVERS, Reach, is_slow, needs_spark, recorded
from epochal.chaos.mutants.runner import Answer, Runner
from epochal.chaos.mutants.warm import Servers

WHOLE = ("coordinator", "checkpoints")
SAMPLED = ("sinks",)
SAMPLE = 150
README = Path("README.md")
FIRST_SECONDS = 4.0
"""Quick tests of so many seconds are run first.  They decide about most mutants."""
ALONE_SECONDS = 20.0
"""The assumed time of a test that is not recorded because it needs its own server."""
START_SECONDS = 120.0
"""How much longer a run may take if it starts Spark and servers."""


@dataclass(frozen=True)
class Tried:
    """The verdict about one mutant.

    ``ran`` of the ``of`` tests that reach it were run.  ``by`` is the test that caught it, or the reason of the
    verdict.
    """

    mutant: Mutant
    verdict: str
    by: str = ""
    seconds: float = 0.0
    ran: int = 0
    of: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as a flat JSON object."""
        mutant = self.mutant
        return {
            "name": mutant.name,
            "key": mutant.key,
            "old": mutant.old,
            "new": mutant.new,
            "guard": mutant.takes_a_guard,
            "verdict": self.verdict,
            "caught": self.verdict == "caught",
            "by": self.by,
            "seconds": self.seconds,
            "ran": self.ran,
            "of": self.of,
        }

    def __str__(self) -> str:
        count = "" if self.ran == self.of else f" ({self.ran} of {self.of} tests)"
        return f"{self.verdict:9} {self.seconds:6.1f} s  {self.mutant}{count}  {self.by}"


@dataclass(frozen=True)
class MechanicalRun:
    """The result.  ``code`` is 0: all caught or explained; 1: one survived, or a control failed; 3: some unknown."""

    tried: tuple[Tried, ...]
    generated: int
    red: Sequence[str] = ()  # tests that fail without a mutant

    @property
    def code(self) -> int:
        if self.red or any(t.verdict == "survived" for t in self.tried):
            return 1
        return 0 if self.tried and all(t.verdict in ("caught", "explained") for t in self.tried) else 3

    def to_json(self) -> dict[str, Any]:
        """Return the counts, then each mutant, as JSON."""
        return {
            "generated": self.generated,
            "counts": dict(Counter(t.verdict for t in self.tried)),
            "red": list(self.red),
            "mutants": [t.to_json() for t in self.tried],
        }

    def __str__(self) -> str:
        counts = Counter(t.verdict for t in self.tried)
        told = ", ".join(f"{times} {verdict}" for verdict, times in sorted(counts.items()))
        control = f"; RED with nothing planted: {', '.join(self.red)}" if self.red else ""
        return f"{self.generated} mutants, {len(self.tried)} chosen: {told}{control}"


def choose(
    root: Path, *, sample: int = SAMPLE, seed: int = 0, only: Sequence[str] = (), only_guards: bool = False
) -> tuple[list[Mutant], int]:
    """Return the chosen mutants, and how many there are in all.

    All mutants of ``WHOLE`` are chosen.  Of ``SAMPLED``, every mutant that removes a guard is chosen, and ``sample`` of
    the others by ``seed``.  With ``only``, instead all mutants are chosen whose name or key contains one of these
    texts.  With ``only_guards``, only mutants that remove a guard are kept.
    """
    whole, sampled = (list(_of(root, folders)) for folders in (WHOLE, SAMPLED))
    guards = [m for m in sampled if m.takes_a_guard]
    others = [m for m in sampled if not m.takes_a_guard]
    random.Random(seed).shuffle(others)
    chosen = whole + guards + others[:sample]
    if only:
        chosen = [m for m in whole + sampled if any(part in m.key or part in m.name for part in only)]
    if only_guards:
        chosen = [m for m in chosen if m.takes_a_guard]
    return chosen, len(whole) + len(sampled)


def _of(root: Path, folders: Sequence[str]) -> Iterator[Mutant]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield from mutants(root, str(path.relative_to(root)))


def explained(root: Path) -> dict[str, str]:
    """Return the survivors that the README explains, key -> why, from its lines ``- `key`: why``."""
    path = root / checkout.PLANTED / README
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {m[1]: m[2] for m in re.finditer(r"^- ``(.+?)``: (.+)$", text, re.MULTILINE)}


@dataclass(frozen=True)
class Slot:
    """Two runners in one copy: one uses shared servers, with the other each test starts its own."""

    shared: Runner
    alone: Runner


@dataclass
class Mutator:
    """Runs mutants of ``root``.

    ``patience``: how many recorded seconds of tests are spent on one mutant.  ``grace``: a run that takes so many
    seconds more than four times the recorded time counts as one that does not end.
    """

    root: Path
    reach: Reach
    patience: float = 60.0
    grace: float = 30.0
    until: float = float("inf")  # a time of time.monotonic()
    _killers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self, chosen: Sequence[Mutant], jobs: int) -> Iterator[Tried]:
        """Yield results as they come in."""
        slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        with ExitStack() as stack:
            pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(jobs))
            slow = any(is_slow(path) for path in self.reach.suite)
            servers = stack.enter_context(Servers()) if slow else None
            for _ in range(jobs):
                tree = stack.enter_context(checkout.fresh_copy(self.root))
                shared = stack.enter_context(Runner(self.root, tree, self.reach.modules, servers))
                alone = stack.enter_context(Runner(self.root, tree, self.reach.modules)) if slow else shared
                slots.put(Slot(shared, alone))
            # At the end, also after an interrupt: nothing new begins, running tests are ended, then all is waited for.
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            futures = [pool.submit(self._in_slot, slots, mutant) for mutant in chosen]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()

    def _in_slot(self, slots: queue.SimpleQueue[Slot], mutant: Mutant) -> Tried:
        tests = self.reach.tests(mutant)
        if time.monotonic() >= self.until:
            return Tried(mutant, "not run", "the budget was spent", of=len(tests))
        slot = slots.get()
        try:
            with standing_in(slot.shared.tree, mutant):
                return self._try(slot, mutant, tests)
        finally:
            slots.put(slot)

    def _try(self, slot: Slot, mutant: Mutant, tests: Sequence[str]) -> Tried:
        """Run the quick tests first, then the rest, each up to the first failure."""
        ran, seconds, verdict, by = 0, 0.0, "survived", ""
        alone = self.reach.alone_for(mutant)
        tests = [*tests, *alone]
        for part in self._parts(mutant, tests):
            answer = self._run(slot, part, alone=part[0] in alone)
            verdict, by = judge(answer, is_slow(part[-1]))
            ran, seconds = ran + answer.ran, seconds + answer.seconds
            if verdict != "survived":
                break
        if verdict == "caught":
            self._killers[mutant.file, by] += 1
        elif not tests:
            verdict, by = "survived" if self.reach.whole else "not run", "no test reaches it"
        return Tried(mutant, verdict, by, round(seconds, 1), ran, len(tests))

    def _run(self, slot: Slot, tests: Sequence[str], *, alone: bool) -> Answer:
        recorded = [ALONE_SECONDS if alone else self.reach.seconds.get(test, 0.0) for test in tests]
        grace = self.grace + (START_SECONDS if is_slow(tests[-1]) else 0.0)
        runner = slot.alone if alone else slot.shared
        each = [grace / 2 + 4 * seconds for seconds in recorded]
        return runner.run(tests, seconds=grace + 4 * sum(recorded), each=each, spark=any(map(needs_spark, tests)))

    def _parts(self, mutant: Mutant, tests: Sequence[str]) -> list[list[str]]:
        """Divide the tests: quick ones, less quick ones, those on shared servers, those on their own servers.

        Within a part, tests that caught other mutants of the file come first.
        """
        order = sorted(tests, key=lambda test: (-self._worth(mutant, test), self.reach.seconds.get(test, 0.0)))
        parts: list[list[str]] = [[], [], [], []]
        spent = {True: 0.0, False: 0.0}
        for test in order:
            if test in self.reach.alone:
                parts[3].append(test)
                continue
            slow = is_slow(test)
            spent[slow] += self.reach.seconds.get(test, 0.0)
            which = 2 if slow else int(spent[slow] > FIRST_SECONDS and bool(parts[0]))
            if spent[slow] <= self.patience or not parts[which]:
                parts[which].append(test)
        return [part for part in parts if part]

    def _worth(self, mutant: Mutant, test: str) -> float:
        """How many mutants of the file the test caught, per second that it takes."""
        return self._killers[mutant.file, test] / (0.1 + self.reach.seconds.get(test, 0.0))


_BROKEN_OFF = (2, 3, 99)
"""Codes for: pytest was interrupted, or had an internal error.  Without a mutant that does not happen."""


def judge(answer: Answer, slow: bool = False) -> tuple[str, str]:
    """Return (verdict, by) of one run.  ``slow``: it used servers, whose failures say nothing about the mutant."""
    if answer.code == zygote.HUNG:
        return "caught", "the tests did not end"
    if answer.red is not None:
        test, phase, text = answer.red
        if phase == "setup" and slow:
            return "invalid", f"{test} could not be set up: {text[-200:]}"
        return "caught", test if phase == "call" else f"{phase} of {test}"
    if answer.code == 0 and not answer.outside:
        return "survived", ""
    if answer.ran and answer.code in _BROKEN_OFF and not slow:
        return "caught", f"pytest broke off: {answer.trouble or answer.code}"
    return "invalid", f"pytest ended with {answer.code} {answer.trouble} {', '.join(answer.outside)}".strip()


@contextmanager
def standing_in(tree: Path, mutant: Mutant) -> Iterator[None]:
    """Put the mutant into ``tree`` within this context.  The file's time changes, so that no compiled file is used."""
    path = tree / mutant.file
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(mutant.apply(before))
    os.utime(path, (times.st_atime, times.st_mtime - 7))
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def mechanical(
    *,
    budget: float | None = None,
    seed: int = 0,
    sample: int = SAMPLE,
    only: Sequence[str] = (),
    only_guards: bool = False,
    jobs: int = 2,
    suite: Sequence[str] = (*FAST, *SERVERS),
    options: Sequence[str] = (),
    patience: float = 60.0,
    grace: float = 30.0,
    root: Path | None = None,
    tell: Callable[[str], None] = print,
) -> MechanicalRun:
    """Try the chosen mutants (``choose``) for ``budget`` seconds.  Call ``tell`` with a line for each not caught.

    ``options`` of pytest say which tests of ``suite`` count: ``--proof`` leaves out what ``make test`` leaves out.

    The recording of which test reaches which line is made first, and is not part of the budget.  It is also the
    control.  Raises NoCheckout if there is no checkout around the current directory (or ``root``).
    """
    root = checkout.find(root)
    chosen, generated = choose(root, sample=sample, seed=seed, only=only, only_guards=only_guards)
    reach = recorded(root, suite, tell, options)
    if reach.red:
        run = MechanicalRun(tuple(Tried(m, "not run", "a control is red") for m in chosen), generated, reach.red)
        tell(str(run))
        return run
    known = explained(root)
    until = time.monotonic() + budget if budget is not None else float("inf")
    tried: list[Tried] = []
    try:
        for one in Mutator(root, reach, patience, grace, until).run(_order(chosen, reach), jobs):
            if one.verdict == "survived" and one.mutant.key in known:
                one = replace(one, verdict="explained", by=known[one.mutant.key])
            tried.append(one)
            if one.verdict not in ("caught", "not run"):
                tell(str(one))
            elif len(tried) % 50 == 0:
                tell(f"{len(tried)} of {len(chosen)}: {dict(Counter(t.verdict for t in tried))}")
    except KeyboardInterrupt:  # the results so far are still reported
        found = {one.mutant for one in tried}
        tried += [Tried(mutant, "not run", "interrupted") for mutant in chosen if mutant not in found]
    run = MechanicalRun(tuple(tried), generated)
    tell(str(run))
    return run


def _order(chosen: Sequence[Mutant], reach: Reach) -> list[Mutant]:
    """Guards first, then mutants that quick tests reach, so that a small budget is spent on what matters."""

    def cost(mutant: Mutant) -> tuple[bool, float]:
        tests = reach.tests(mutant)
        return not mutant.takes_a_guard, min((reach.seconds.get(t, 0.0) for t in tests), default=0.0)

    return sorted(chosen, key=cost)
