"""``epochal chaos``: the command line of the fault-injection suite, for our own and for anyone's code."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import re
import shlex
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from epochal.chaos.campaign.plan import MASTER, STRIKES, Plan, Result
from epochal.chaos.campaign.roles import CheckedReport, Report, Reports
from epochal.chaos.job import workloads
from epochal.chaos.job.targets import Usage
from epochal.chaos.observe import checker, invariants, recording
from epochal.chaos.observe.checker import Finding, Verdict
from epochal.chaos.observe.recording import NotAHistory
from epochal.chaos.observe.roles import RoleError
from epochal.chaos.observe.run import Run
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.strike.strikes import ON, Menu, Strike
from epochal.coordinator.model.failpoints import Point

P = ParamSpec("P")
VALID, INVALID, USAGE, UNKNOWN = 0, 1, 2, 3
CODES = {Verdict.TRUE: VALID, Verdict.FALSE: INVALID, Verdict.UNKNOWN: UNKNOWN}
WORDS = {Verdict.TRUE: "VALID", Verdict.FALSE: "INVALID", Verdict.UNKNOWN: "UNKNOWN"}
SAYS = {Verdict.TRUE: "holds", Verdict.FALSE: "violated", Verdict.UNKNOWN: "unknown"}
SECONDS_BETWEEN = 10.0  # between two lines of progress
TIER = 4  # the default
WORKLOAD = "rows"
LONGEST = 400  # characters of a reason that are printed
STYLES = {Verdict.TRUE: "bold green", Verdict.FALSE: "bold red", Verdict.UNKNOWN: "bold yellow"}

chaos = typer.Typer(
    help="Strike jobs with faults, and judge their output.  Exit codes: 0 valid, 1 invalid, 2 wrong usage, 3 unknown.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
screen = Console(highlight=False)


class Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        for line in text.splitlines():
            screen.print(f"{time.monotonic() - self._began:6.1f} s  {line}", soft_wrap=True, markup=False)


def show(run: Run, findings: Mapping[str, Finding]) -> None:
    """Print the table of verdicts, and the overall verdict."""
    verdict = checker.verdict(run, findings)
    table = Table("invariant", "what it says", "verdict", "observations")
    for name, finding in findings.items():
        row = (name, invariants.MEANING[name], SAYS[finding.verdict], f"{finding.observations:,}")
        table.add_row(*row, style=_style(finding))
    screen.print(table)
    for name, finding in findings.items():
        if finding.why:
            screen.print(f"{name}: {finding.why[:LONGEST]}", soft_wrap=True, markup=False, style=_style(finding))
    if run.proves_nothing:
        screen.print(f"cannot tell: {run.proves_nothing}", soft_wrap=True, markup=False)
    screen.print(WORDS[verdict], style=STYLES[verdict])


def _style(finding: Finding) -> str:
    return {Verdict.TRUE: "", Verdict.FALSE: "red", Verdict.UNKNOWN: "yellow"}[finding.verdict]


def refuse(error: Exception) -> typer.Exit:
    """Print wrong usage in one line; return the exit to raise."""
    complain(str(error))
    return typer.Exit(USAGE)


def complain(text: str) -> None:
    """Print a line to standard error, so that it is not mistaken for a result."""
    Console(stderr=True, highlight=False).print(f"epochal chaos: {text}", soft_wrap=True, markup=False)


Command = Callable[P, None]


def judged(command: Command[P]) -> Command[P]:
    """Make a command exit with *unknown* if it fails itself, because exit code 1 must mean a violation only."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except (Usage, RoleError, ServerUnavailable, NotAHistory) as error:
            raise refuse(error) from error
        except Exception as error:
            traceback.print_exc()
            complain(f"cannot tell: {type(error).__name__}: {error}")
            raise typer.Exit(UNKNOWN) from error

    return guarded


def check_writable(folder: Path) -> None:
    """Make the folder.  Raises Usage if it cannot be written to, so that the run does not fail at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise Usage(f"{folder} cannot be written to")


def environment() -> dict[str, str]:
    """Return what a report says about the machine: versions and processor, but no path and no address."""
    found = {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    for package in ("epochal", "pyspark", "confluent-kafka", "psycopg", "delta-spark"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


@chaos.command()
@judged
def run(
    target: Annotated[
        str, typer.Option(help="package.module:name of an Epochal sink, a pipeline or a function of (df, epoch).")
    ] = "",
    reader: Annotated[
        list[str] | None,
        typer.Option(
            help="package.module:function that returns the rows of an output; name=module:function for several."
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(help="package.module:function of (spark, rows) that turns the kit's rows into the target's.")
    ] = "",
    workload: Annotated[
        str, typer.Option(help=f"Input: {', '.join(workloads.NAMES)}.  Default: {WORKLOAD}, or that of our own target.")
    ] = "",
    server: Annotated[
        list[str] | None, typer.Option(help="Start this server for the target: postgres, kafka; may be repeated.")
    ] = None,
    tier: Annotated[int, typer.Option(help="4: kill processes.  3: raise errors inside one process.")] = TIER,
    strikes: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many strikes (default {STRIKES}). None is repeated before all were used once."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="How long to strike, instead of --strikes.")] = 0.0,
    strike: Annotated[
        list[str] | None,
        typer.Option(help="Only this, as kill:driver:after-return or crash:kafka:before-publish@kafka; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the strikes.")] = 0,
    stop_at_first: Annotated[bool, typer.Option("--stop-at-first", help="Stop at the first violation.")] = False,
    conf: Annotated[list[str] | None, typer.Option(help="key=value for the Spark session; may be repeated.")] = None,
    master: Annotated[
        str, typer.Option(help="Spark's master; local-cluster[2,1,1024] has separate executors.")
    ] = MASTER,
    history: Annotated[Path | None, typer.Option(help="Write the histories (JSON lines) to this folder.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report, one HTML file, to this path.")] = None,
) -> None:
    """Strike a target, and judge what outside readers saw.

    Example: epochal chaos run --target my.job:write --reader my.job:rows --report out.html

    Without --target, strike our own pipelines in turn, on servers that the kit starts.  To strike one of them, use
    --target epochal.chaos.campaign.own:upsert (or :pipeline, :plain, :overwrite, :idempotent).
    """
    from epochal.chaos.campaign import own, rounds

    if tier not in (3, 4):
        raise Usage(f"--tier {tier}: 3 or 4; tier 1 is `epochal chaos simulate`, tier 2 `epochal chaos fuzz`")
    if not target and tier == TIER and not strike and (strikes is not None or workload or master != MASTER):
        raise Usage("leave out --strikes, --workload and --master: without --target they change from round to round")
    asked = [parse_strike(text) for text in strike or ()]
    plan = Plan(
        target=target,
        readers=tuple(reader or ()),
        source=source,
        workload=workload or (ours.workload if (ours := own.named(target)) is not None else WORKLOAD),
        tier=tier,
        seed=seed,
        strikes=len(asked) if asked and strikes is None else strikes or STRIKES,
        seconds=minutes * 60,
        stop_at_first=stop_at_first,
        all_must_strike=bool(asked) and not minutes,
        master=master,
        conf=dict(_pair(text) for text in conf or ()),
    )
    for folder in [history, report.parent if report is not None else None]:
        if folder is not None:
            check_writable(folder)
    servers = tuple(server or ())
    results = rounds.play(plan, Progress(), menu=Menu(asked) if asked else None, servers=servers)
    about = {
        "command": command(plan, asked, servers),
        "target": target or "Epochal's own sinks",
        "seed": seed,
        "environment": environment(),
        "made": _now(),
    }
    verdict = tell(results, about, history, report)
    if verdict is Verdict.FALSE:
        again(next(result for result in results if result.verdict is Verdict.FALSE), servers)
    raise typer.Exit(CODES[verdict])


_STRIKE = re.compile(
    r"(?P<action>[a-z-]+):(?P<victim>[a-z]+):(?P<point>[a-z-]+)(@(?P<sink>[\w.-]+))?(#(?P<nth>[1-9]\d*))?"
)


def parse_strike(text: str) -> Strike:
    """Return the strike in ``action:victim:point[@sink][#n]``.  Raises Usage for any other text."""
    match = _STRIKE.fullmatch(text)
    points = {point.value: point for point in Point}
    known = match is not None and match["victim"] in ON.get(match["action"], ()) and match["point"] in points
    if match is None or not known:
        pairs = [f"{action}:{victim}" for action, victims in ON.items() for victim in sorted(victims)]
        raise Usage(
            f"{text!r} is not action:victim:point[@sink][#n], with an action and its victim of {', '.join(pairs)},"
            f" and a point of {', '.join(points)}"
        )
    nth = int(match["nth"] or 1)
    return Strike(match["action"], match["victim"], points[match["point"]], 0, match["sink"] or "", nth)


def format_strike(strike: Strike) -> str:
    """Return the text that :func:`parse_strike` reads."""
    sink = f"@{strike.sink}" if strike.sink else ""
    nth = f"#{strike.nth}" if strike.nth > 1 else ""
    return f"{strike.action}:{strike.victim}:{strike.point.value}{sink}{nth}"


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise Usage(f"--conf {text!r} is not key=value")
    return key, value


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def command(plan: Plan, strikes: Sequence[Strike] = (), servers: Sequence[str] = ()) -> str:
    """Return the command line that runs this plan, or only these strikes of it."""
    words = ["epochal", "chaos", "run"]
    if plan.target:
        words += ["--target", plan.target]
    words += [word for reader in plan.readers for word in ("--reader", reader)]
    words += ["--source", plan.source] if plan.source else []
    words += [word for server in servers for word in ("--server", server)]
    words += ["--workload", plan.workload] if plan.workload != WORKLOAD else []
    words += ["--seed", str(plan.seed)]
    words += [word for strike in strikes for word in ("--strike", format_strike(strike))]
    words += ["--tier", str(plan.tier)] if plan.tier != TIER else []
    words += ["--master", plan.master] if plan.master != MASTER else []
    words += [word for key, value in plan.conf.items() for word in ("--conf", f"{key}={_shown(key, value)}")]
    if plan.seconds:
        words += ["--minutes", f"{plan.seconds / 60:g}"]
    elif plan.target and plan.strikes != (len(strikes) or STRIKES):
        words += ["--strikes", str(plan.strikes)]
    return shlex.join(words)


def _shown(key: str, value: str) -> str:
    """The value of a setting, or ``...`` if it may be a secret, which must not be in a report."""
    return "..." if any(word in key.lower() for word in ("password", "secret", "token", "key")) else value


def tell(results: Sequence[Result], about: Mapping[str, Any], history: Path | None, page: Path | None) -> Verdict:
    """Show verdicts on the terminal, and write histories and the page if requested.  Return the worst verdict."""
    kept = Page(page, about)
    told: list[Report] = [Terminal(many=len(results) > 1)]
    told += [Histories(history)] if history is not None else []
    told += [kept] if page is not None else []
    report = CheckedReport(Reports(told))
    for result in results:
        named = {"struck": [str(one) for one in result.struck], "unreached": [str(one) for one in result.unreached]}
        report.tell(result.run, result.findings, {**about, **named})
    kept.write()
    return checker.worst([result.verdict for result in results])


@dataclass
class Terminal:
    """Prints a table of verdicts and the strikes that did not happen; if something is wrong, also those that did."""

    many: bool = False
    _told: int = 0

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        self._told += 1
        if self.many:
            screen.print(f"round {self._told}", style="bold")
        show(run, findings)
        struck, unreached = about["struck"], about["unreached"]
        screen.print(f"{len(struck)} strikes struck, {len(unreached)} did not", markup=False)
        wrong = checker.verdict(run, findings) is not Verdict.TRUE
        for word, strikes in (("struck", struck if wrong else ()), ("did not strike", unreached)):
            for strike in strikes:
                screen.print(f"  {word}: {strike}", soft_wrap=True, markup=False)


@dataclass
class Histories:
    """Writes one file for each run, in an existing folder."""

    folder: Path
    _told: int = 0

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:
        self._told += 1
        recording.save(run, self.folder / f"round-{self._told}.jsonl", {**about, "invariants": list(findings)})


@dataclass
class Page:
    """Writes one HTML file for all runs at the end.  With ``path`` None it writes nothing."""

    path: Path | None
    about: Mapping[str, Any]
    rounds: list[tuple[Run, Mapping[str, Finding], Mapping[str, Any]]] = field(default_factory=list)

    def tell(self, run: Run, findings: Mapping[str, Finding], about: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.rounds.append((run, findings, {}))

    def write(self) -> None:
        if self.path is not None:
            write_page(self.path, self.rounds, self.about)


def write_page(
    path: Path, told: Sequence[tuple[Run, Mapping[str, Finding], Mapping[str, Any]]], about: Mapping[str, Any]
) -> None:
    """Write the report as one HTML file.  What draws its charts is imported only here."""
    from epochal.chaos.report import write
    from epochal.chaos.report.account import Round

    write(path, [Round(*one) for one in told], about)
    complain(f"report: {path}")


def again(result: Result, servers: Sequence[str]) -> None:
    """Print the command that shows the violation again: with the one strike before it if that is enough, else all."""
    from epochal.chaos.campaign import own

    plan = replace(result.plan, target="") if result.plan.target == own.TARGET else result.plan
    strikes = shrunk(plan, result, servers)
    if strikes:
        screen.print("the command that shows it again:", style="bold")
        smaller = replace(plan, seconds=0.0, strikes=len(strikes))
        screen.print(command(smaller, strikes, servers), soft_wrap=True, markup=False)


def shrunk(plan: Plan, result: Result, servers: Sequence[str]) -> Sequence[Strike]:
    """Return the strikes that are needed: the blamed ones if a run with only these is invalid too, else all."""
    from epochal.chaos.campaign import rounds

    blamed = result.blamed()
    if len(blamed) == len(result.struck):
        return blamed
    screen.print(f"once more, only with {'; '.join(map(str, blamed))}", soft_wrap=True, markup=False)
    alone = replace(plan, seconds=0.0, strikes=len(blamed), all_must_strike=True)
    (once_more,) = rounds.play(alone, Progress(), menu=Menu(blamed), servers=servers)
    if once_more.verdict is Verdict.FALSE:
        return blamed
    screen.print("that alone does not show the violation: all strikes are needed, or it was chance", markup=False)
    return result.struck


@chaos.command()
@judged
def simulate(
    traces: Annotated[int, typer.Option(min=1, help="Stop at so many distinct traces.")] = 100_000,
    minutes: Annotated[float, typer.Option(help="Stop also after so many minutes.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the samples of three and four faults.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = os.cpu_count() or 1,
    stop_at_first: Annotated[bool, typer.Option("--stop-at-first", help="Stop at the first violation.")] = False,
) -> None:
    """Tier 1: run the real coordinator in a simulated world with every fault, every pair of faults, and samples.

    Example: epochal chaos simulate --traces 2000000 --jobs 2
    """
    from epochal.chaos.simulate.explore import Tally, explore

    progress, told = Progress(), [0.0]

    def tell(tally: Tally) -> None:
        if tally.elapsed - told[0] > SECONDS_BETWEEN:
            told[0] = tally.elapsed
            progress(f"{len(tally.traces):,} distinct traces")

    seconds = minutes * 60 or None
    found = explore(
        epochs=(2, 3), traces=traces, seconds=seconds, seed=seed, jobs=jobs, stop_early=stop_at_first, progress=tell
    )
    screen.print(str(found), soft_wrap=True, markup=False)
    screen.print(WORDS[found.verdict], style=STYLES[found.verdict])
    raise typer.Exit(CODES[found.verdict])


@chaos.command()
@judged
def fuzz(
    minutes: Annotated[float, typer.Option(help="Run for so many minutes, or until the first failure.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the steps.")] = 0,
) -> None:
    """Tier 2: Hypothesis drives coordinator, logs and sinks step by step; a failure is printed as a program.

    Example: epochal chaos fuzz --minutes 10 --seed 3
    """
    from epochal.chaos.simulate.machine import CoordinatorMachine, FilesLogMachine
    from epochal.chaos.simulate.machine import fuzz as run_machine

    verdicts = []
    for machine in (CoordinatorMachine, FilesLogMachine):
        found = run_machine(seconds=minutes * 60 / 2, seed=seed, machine=machine)
        screen.print(f"{machine.__name__}: {found}", soft_wrap=True, markup=False)
        verdicts.append(found.verdict)
    verdict = checker.worst(verdicts)
    screen.print(WORDS[verdict], style=STYLES[verdict])
    raise typer.Exit(CODES[verdict])


@chaos.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def mutants(context: typer.Context) -> None:
    """Remove guards in a copy of the checkout, and see whether a test fails.

    Example: epochal chaos mutants --json planted.json
    """
    from epochal.chaos.mutants.__main__ import main

    raise typer.Exit(main(context.args))


@chaos.command()
@judged
def check(
    histories: Annotated[list[Path], typer.Argument(help="Files that `run --history` wrote.")],
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report, one HTML file, to this path.")] = None,
) -> None:
    """Judge histories again, without running anything.

    Example: epochal chaos check histories/round-1.jsonl
    """
    try:
        loaded = [recording.load(path) for path in histories]
    except OSError as error:
        raise Usage(str(error)) from error
    if report is not None:
        check_writable(report.parent)
    found = [(told, checker.judge_all(told, _invariants(about)), about) for told, about in loaded]
    verdict = checker.worst([checker.verdict(told, findings) for told, findings, _ in found])
    if json_:
        each = [as_json(path, *one[:2]) for path, one in zip(histories, found, strict=True)]
        screen.print_json(json.dumps({"verdict": WORDS[verdict].lower(), "histories": each}))
    else:
        for told, findings, _ in found:
            show(told, findings)
    if report is not None:
        write_page(report, found, loaded[0][1])
    raise typer.Exit(CODES[verdict])


def _invariants(about: Mapping[str, Any]) -> Sequence[str]:
    """The invariants that judged the run when it was written; all if the file does not say."""
    return [name for name in about.get("invariants", invariants.CHECKS) if name in invariants.CHECKS]


def as_json(path: Path, run: Run, findings: Mapping[str, Finding]) -> dict[str, Any]:
    """Return a judged history as JSON for other programs."""
    return {
        "history": str(path),
        "verdict": WORDS[checker.verdict(run, findings)].lower(),
        "proves_nothing": run.proves_nothing,
        "findings": [
            {"invariant": name, "verdict": f.verdict.value, "observations": f.observations, "why": f.why}
            for name, f in findings.items()
        ],
    }
