"""``epochal chaos``: the fault-injection suite, on ourselves and on anyone's code."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from epochal.chaos import checker, recording, workloads
from epochal.chaos.campaign import Plan, Result
from epochal.chaos.checker import Finding, Run, Verdict
from epochal.chaos.failpoints import Point
from epochal.chaos.recording import NotAHistory
from epochal.chaos.roles import ACTIONS, VICTIMS, Menu, RoleError, Strike
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.targets import Usage

VALID, INVALID, USAGE, UNKNOWN = 0, 1, 2, 3
CODES = {Verdict.TRUE: VALID, Verdict.FALSE: INVALID, Verdict.UNKNOWN: UNKNOWN}
WORDS = {Verdict.TRUE: "VALID", Verdict.FALSE: "INVALID", Verdict.UNKNOWN: "UNKNOWN"}
SAYS = {Verdict.TRUE: "holds", Verdict.FALSE: "violated", Verdict.UNKNOWN: "unknown"}
SECONDS_BETWEEN = 10.0  # lines of progress
TIER = 4  # unless another is asked for
LONGEST = 400  # characters of a reason
STYLES = {Verdict.TRUE: "bold green", Verdict.FALSE: "bold red", Verdict.UNKNOWN: "bold yellow"}

chaos = typer.Typer(
    help="Kill, pause and cut, and judge what is left.  Exit codes: 0 valid, 1 invalid, 2 wrong usage, 3 unknown.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
screen = Console(highlight=False)


class Progress:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        for line in text.splitlines():
            screen.print(f"{time.monotonic() - self._began:6.1f} s  {line}", soft_wrap=True, markup=False)


def show(findings: Mapping[str, Finding], verdict: Verdict, why_unknown: str = "") -> None:
    """The table of verdicts, and all in one word."""
    table = Table("invariant", "what it says", "verdict", "observations")
    for name, finding in findings.items():
        row = (name, checker.MEANING[name], SAYS[finding.verdict], f"{finding.observations:,}")
        table.add_row(*row, style=_style(finding))
    screen.print(table)
    for name, finding in findings.items():
        if finding.why:
            screen.print(f"{name}: {finding.why[:LONGEST]}", soft_wrap=True, markup=False, style=_style(finding))
    if why_unknown:
        screen.print(f"cannot tell: {why_unknown}", soft_wrap=True, markup=False)
    screen.print(WORDS[verdict], style=STYLES[verdict])


def _style(finding: Finding) -> str:
    return {Verdict.TRUE: "", Verdict.FALSE: "red", Verdict.UNKNOWN: "yellow"}[finding.verdict]


def refuse(error: Exception) -> typer.Exit:
    """Wrong usage, told in one line."""
    Console(stderr=True, highlight=False).print(f"epochal chaos: {error}", soft_wrap=True, markup=False)
    return typer.Exit(USAGE)


def environment() -> dict[str, str]:
    """What a report says about where it was made; no path, no address."""
    found = {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    for package in ("epochal", "pyspark", "confluent-kafka", "psycopg", "delta-spark"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


@chaos.command()
def run(
    target: Annotated[
        str, typer.Option(help="package.module:thing, an Epochal sink, a pipeline or a function of (df, epoch).")
    ] = "",
    reader: Annotated[
        list[str] | None,
        typer.Option(
            help="package.module:function that returns what an output holds; several as name=module:function."
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(help="package.module:function of (spark, rows) between the kit's rows and the target.")
    ] = "",
    workload: Annotated[str, typer.Option(help=f"What is fed: {', '.join(workloads.NAMES)}.")] = "rows",
    server: Annotated[
        list[str] | None, typer.Option(help="Start this server for the target: postgres, kafka; may be repeated.")
    ] = None,
    tier: Annotated[int, typer.Option(help="4: processes are killed.  3: errors inside one process.")] = TIER,
    strikes: Annotated[int, typer.Option(help="How many strikes; each kind comes once before any comes again.")] = 12,
    minutes: Annotated[float, typer.Option(help="Strike on until this time is over, instead.")] = 0.0,
    strike: Annotated[
        list[str] | None,
        typer.Option(help="Only this, as kill:driver:after-return or crash:kafka:before-publish@kafka; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the order of the strikes.")] = 0,
    stop_at_first: Annotated[bool, typer.Option("--stop-at-first", help="End at the first violation.")] = False,
    conf: Annotated[list[str] | None, typer.Option(help="key=value for the Spark session; may be repeated.")] = None,
    history: Annotated[Path | None, typer.Option(help="Write the history (JSON lines) to this folder.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write one HTML file.")] = None,
) -> None:
    """Strike a target, and judge what outside readers saw.

    Example: epochal chaos run --target my.job:write --reader my.job:rows --report out.html

    Without --target: our own three sinks, on servers of the kit's.
    """
    from epochal.chaos import rounds

    try:
        if tier not in (3, 4):
            raise Usage(f"--tier {tier}: 3 or 4; tier 1 is `epochal chaos simulate`")
        plan = Plan(
            target=target,
            readers=tuple(reader or ()),
            rows=source,
            workload=workload,
            tier=tier,
            seed=seed,
            strikes=strikes,
            seconds=minutes * 60,
            stop_at_first=stop_at_first,
            conf=dict(_pair(text) for text in conf or ()),
        )
        menu = Menu([parse_strike(text) for text in strike]) if strike else None
        if menu is not None and not minutes:
            plan = replace(plan, strikes=len(menu.strikes))
        results = rounds.play(plan, Progress(), menu=menu, servers=tuple(server or ()))
    except (Usage, RoleError, ServerUnavailable) as error:
        raise refuse(error) from error
    asked = command(plan, menu.strikes if menu is not None else (), server or ())
    about = {"command": asked, "seed": seed, "environment": environment(), "made": _now()}
    verdict = tell(results, about, history, report)
    if verdict is Verdict.FALSE:
        again(results, plan, server or ())
    raise typer.Exit(CODES[verdict])


_STRIKE = re.compile(r"(?P<action>[a-z-]+):(?P<victim>[a-z]+):(?P<point>[a-z-]+)(@(?P<sink>[\w.-]+))?(#(?P<nth>\d+))?")


def parse_strike(text: str) -> Strike:
    """``action:victim:point[@sink][#n]``; Usage for anything else."""
    match = _STRIKE.fullmatch(text)
    points = {point.value: point for point in Point}
    known = match is not None and match["action"] in ACTIONS and match["victim"] in VICTIMS and match["point"] in points
    if match is None or not known:
        raise Usage(
            f"{text!r} is not action:victim:point[@sink][#n], with an action of {sorted(ACTIONS)}, a victim of"
            f" {sorted(VICTIMS)}, and a point of {sorted(points)}"
        )
    nth = int(match["nth"] or 1)
    return Strike(match["action"], match["victim"], points[match["point"]], 0, match["sink"] or "", nth)


def format_strike(strike: Strike) -> str:
    """The text that :func:`parse_strike` reads."""
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
    """The command line that runs this plan, or these strikes of it alone."""
    words = ["epochal", "chaos", "run"]
    if plan.target:
        words += ["--target", plan.target]
    words += [word for reader in plan.readers for word in ("--reader", reader)]
    words += ["--source", plan.rows] if plan.rows else []
    words += [word for server in servers for word in ("--server", server)]
    words += ["--workload", plan.workload, "--seed", str(plan.seed)]
    words += [word for strike in strikes for word in ("--strike", format_strike(strike))]
    words += ["--tier", str(plan.tier)] if plan.tier != TIER else []
    if plan.seconds:
        words += ["--minutes", f"{plan.seconds / 60:g}"]
    elif not strikes:
        words += ["--strikes", str(plan.strikes)]
    return shlex.join(words)


def tell(results: Sequence[Result], about: Mapping[str, Any], history: Path | None, page: Path | None) -> Verdict:
    """Verdicts on the terminal; histories and the page where they were asked for."""
    for number, result in enumerate(results, start=1):
        if len(results) > 1:
            screen.print(f"round {number}", style="bold")
        show(result.findings, result.verdict, result.why_unknown)
        if result.verdict is not Verdict.TRUE:
            _tell_struck(result)
        if history is not None:
            history.mkdir(parents=True, exist_ok=True)
            judged = {**about, "invariants": list(result.findings)}
            recording.save(result.run, history / f"round-{number}.jsonl", judged)
    if page is not None:
        write_page(page, [(result.run, result.findings, {}) for result in results], about)
    return checker.worst([result.verdict for result in results])


def write_page(
    path: Path, told: Sequence[tuple[Run, Mapping[str, Finding], Mapping[str, Any]]], about: Mapping[str, Any]
) -> None:
    """The report as one HTML file; its charts are drawn only when somebody asks for it."""
    from epochal.chaos.report import write
    from epochal.chaos.report.account import Round

    write(path, [Round(*one) for one in told], about)
    screen.print(f"report: {path}", markup=False)


def _tell_struck(result: Result) -> None:
    for strike in result.struck:
        screen.print(f"  struck: {strike}", soft_wrap=True, markup=False)


def again(results: Sequence[Result], plan: Plan, servers: Sequence[str]) -> None:
    """How the first violation is seen again, by as few strikes as are known to be needed."""
    result = next(result for result in results if result.verdict is Verdict.FALSE)
    blamed = result.blamed()
    if blamed:
        screen.print("the strikes before the first violation, as a command:", style="bold")
        screen.print(command(plan, blamed, servers), soft_wrap=True, markup=False)


@chaos.command()
def simulate(
    traces: Annotated[int, typer.Option(help="Go on until there are so many distinct traces.")] = 100_000,
    minutes: Annotated[float, typer.Option(help="Or until this time is over.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Draws the samples of three and four faults.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = os.cpu_count() or 1,
    stop_at_first: Annotated[bool, typer.Option("--stop-at-first", help="End at the first violation.")] = False,
) -> None:
    """Tier 1: the real coordinator in a simulated world, every fault and pair of faults, then samples.

    Example: epochal chaos simulate --traces 2000000 --jobs 2
    """
    from epochal.chaos.explore import Tally, explore

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
def fuzz(
    minutes: Annotated[float, typer.Option(help="For so long, or until it fails.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Draws the steps.")] = 0,
) -> None:
    """Tier 2: Hypothesis drives coordinator, logs and sinks step by step; a failure is printed as a program.

    Example: epochal chaos fuzz --minutes 10 --seed 3
    """
    from epochal.chaos.machine import CoordinatorMachine, FilesLogMachine
    from epochal.chaos.machine import fuzz as run_machine

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
    """Take away guards in a copy of the checkout, and see whether the suite notices.

    Example: epochal chaos mutants --json planted.json
    """
    from epochal.chaos.mutants.__main__ import main

    raise typer.Exit(main(context.args))


@chaos.command()
def check(
    histories: Annotated[list[Path], typer.Argument(help="Files that `run --history` wrote.")],
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write one HTML file.")] = None,
) -> None:
    """Judge histories again, without running anything.

    Example: epochal chaos check histories/round-1.jsonl
    """
    try:
        loaded = [(path, *recording.load(path)) for path in histories]
    except (NotAHistory, OSError) as error:
        raise refuse(error) from error
    judged = [(told, checker.judge_all(told, _invariants(about)), about) for _, told, about in loaded]
    verdicts = [checker.overall(findings) for _, findings, _ in judged]
    for path, (_, findings, _), verdict in zip(histories, judged, verdicts, strict=True):
        if json_:
            screen.print_json(json.dumps({"history": str(path), "findings": as_json(findings)}))
        else:
            show(findings, verdict)
    if report is not None:
        write_page(report, judged, loaded[0][2])
    raise typer.Exit(CODES[checker.worst(verdicts)])


def _invariants(about: Mapping[str, Any]) -> Sequence[str]:
    """What the run was judged by when it was written; else all that there is."""
    return [name for name in about.get("invariants", checker.CHECKS) if name in checker.CHECKS]


def as_json(findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Findings for other programs."""
    return [
        {"invariant": name, "verdict": f.verdict.value, "observations": f.observations, "why": f.why}
        for name, f in findings.items()
    ]
