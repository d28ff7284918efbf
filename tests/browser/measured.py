"""Results of benchmarks made up: two runs of every form of table there is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import ALARMS
from benchmarks.measuring import Measure, Ratio
from benchmarks.results import VERSION, Result

ROUNDS = 5
OURS = tuple(f"epochal {sink}" for sink in ("postgres", "kafka", "delta"))
PEERS: Mapping[str, Mapping[str, tuple[float, str | None]]] = {
    "epochal postgres": {
        "spark jdbc, rewritten batches": (1.42, "postgres-jdbc-rewritten"),
        "spark jdbc": (3.1, "postgres-jdbc"),
        "psycopg COPY": (0.97, None),
        "server-side COPY of a file": (0.71, "postgres-server-copy"),
    },
    "epochal kafka": {
        "confluent-kafka, no transaction": (0.94, "kafka-plain"),
        "spark kafka": (0.64, "kafka-spark"),
        "spark kafka, tuned": (0.52, None),
    },
    "epochal delta": {"delta append": (0.98, "delta-plain"), "delta append, txnAppId": (1.01, None)},
}
PHASES = ("identify", "materialise", "prepare", "decide", "commit", "clean", "rest of Spark's batch")
ENVIRONMENT: Mapping[str, Any] = {
    "cores": 2,
    "memory_gb": 25,
    "machine": "x86_64",
    "processor": "Intel(R) Xeon(R) Processor",
    "file_system": "ext4",
    "system": "Linux",
    "load_before": 0.31,
    "versions": {"python": "3.11.7", "pyspark": "4.2.0", "kafka broker": "4.3.1", "postgres": "18"},
}
LONG = "a sink whose name.goes_on:for/ever-and-is-broken-where-there-is-a-joint-or-anywhere-else " * 2
HOSTILE = "<script>alert('&\"')</script>"


class Making:
    """Values around a middle, always the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def around(self, middle: float, spread: float = 0.06) -> list[float]:
        return [middle * self._rng.lognormvariate(0, spread) for _ in range(ROUNDS)]


def throughput(making: Making) -> Result:
    result = Result("throughput", ROUNDS)
    for value, rows in ((100, 2_000_000), (1_000, 300_000)):
        case = {"rows": rows, "value bytes": value}
        for place, job in enumerate(OURS):
            speed = (410_000.0, 260_000.0, 690_000.0)[place] * 100 / value
            result.add([Measure(job, case, "rows/s", making.around(speed))])
            for peer, (ratio, goal) in PEERS[job].items():
                theirs = Measure(peer, case, "rows/s", making.around(speed / ratio))
                found = Ratio(job, peer, case, "rows/s", making.around(ratio), goal if value == 100 else None)
                result.add([theirs], found)
        three = "three-sum" if value == 100 else None
        result.add(
            [], Ratio("epochal three", "the sum of the three alone", case, "s", making.around(1.08, 0.02), three)
        )
    return result


def small(making: Making) -> Result:
    result = Result("small", ROUNDS)
    for rows in (1, 1_000, 100_000):
        for job, cost, goal in (("epochal postgres", 0.08, "small-one"), ("epochal three", 1.2, "small-three")):
            case = {"rows": rows}
            parts = [(0.05 + place % 3) * cost / 8 + rows / 2e6 for place in range(len(PHASES))]
            for phase, seconds in zip(PHASES, parts, strict=True):
                result.add([Measure(job, {**case, "phase": phase}, "s", making.around(seconds))])
            more = Ratio(job, "bare foreachBatch", case, "s more", making.around(cost), goal if rows == 1_000 else None)
            result.add([Measure(job, case, "s", making.around(sum(parts)))], more)
    return result


def growth_postgres(making: Making) -> Result:
    return _growth(making, "postgres", 1)


def growth_kafka(making: Making) -> Result:
    return _growth(making, "kafka", 2)


def growth_delta(making: Making) -> Result:
    return _growth(making, "delta", 3)


def _growth(making: Making, job: str, place: int) -> Result:
    result = Result(f"growth-{job}", ROUNDS)
    result.facts["epochs written by the record functions"] = {"from": 10_000, "to": 100_000}
    for epochs in (10, 1_000, 10_000, 100_000):
        case = {"epochs before": epochs}
        result.add([Measure(job, case, "s", making.around(0.1 * place))])
        result.add([Measure(f"{job}: start", case, "s", making.around(3.0))])
        result.add([Measure(f"{job}: log", case, "bytes", [300.0 * epochs * place])])
    values = making.around(1 + 0.1 * place)
    result.add([], Ratio(job, "the same at 10", {"epochs before": 100_000}, "s of an epoch", values, "growth"))
    return result


def memory(making: Making) -> Result:
    result = Result("memory", ROUNDS)
    grown = {"driver": 1.02, "worker": 1.02, "heap after a collection": 6.0}
    for job in (*OURS, "delta append"):
        for rows in (1_000_000, 10_000_000, 50_000_000):
            for where in grown:
                case = {"rows": rows, "of": where}
                result.add([Measure(job, case, "MB", making.around(900.0))])
                if rows > 1_000_000:
                    result.add([], Ratio(job, "the same at 1,000,000 rows", case, "MB", making.around(grown[where])))
    return result


def recovery(making: Making) -> Result:
    result = Result("recovery", ROUNDS)
    for sinks in ("postgres", "postgres kafka delta"):
        for fault in ("nothing in doubt", "killed before the decision", "killed after the decision", "server crashed"):
            case = {"sinks": sinks, "fault": fault}
            for job, seconds in (("epochal", 9.2), ("spark", 8.6)):
                result.add([Measure(job, case, "s", making.around(seconds))])
            result.add([], Ratio("epochal", "spark", case, "s more", making.around(0.6, 0.3), "recovery"))
    return result


TARGETS = (*OURS, "epochal delta, merge", "spark jdbc", "spark kafka, tuned", "delta append")
FAULTS = ("driver killed before the decision", "driver killed after it", "server crashed", "connection cut")


def consistency(making: Making) -> Result:
    result = Result("consistency", ROUNDS)
    for target in TARGETS:
        result.add([], Ratio(target, "bare foreachBatch", {"rows": 100_000}, "s", making.around(1.7)))
    result.facts[ALARMS] = []
    result.facts["faults"] = {fault: f"what {fault} does" for fault in reversed(FAULTS)}
    return result


def cells(making: Making) -> list[dict[str, object]]:
    """Ours are clean, what a peer did is wrong unless nothing struck."""
    found: list[dict[str, object]] = []
    for target in TARGETS:
        for place, fault in enumerate(FAULTS):
            ours = target.startswith("epochal")
            struck = 2 if ours or place < 3 else 0
            duplicated = 0 if ours or not struck else round(making.around(2, 0.5)[0])
            counts = {"lost": 0, "duplicated": duplicated, "torn": int(not ours and place == 2), "out_of_order": 0}
            verdict = "not struck" if not struck else "wrong" if duplicated or counts["torn"] else "clean"
            found.append({"job": target, "fault": fault, "struck": struck, **counts, "unknown": [], "verdict": verdict})
    return found


def latency(making: Making) -> Result:
    result = Result("latency", ROUNDS)
    for sink, peer in {"postgres": "spark jdbc", "kafka": "spark kafka", "delta": "delta append"}.items():
        for quantile, seconds in {"p50": 1.1, "p95": 1.7, "p99": 1.9}.items():
            case = {"sinks": sink, "reader of": sink, "of": quantile}
            for job, more in (("epochal", 0.1), (peer, 0.0)):
                result.add([Measure(job, case, "s", making.around(seconds + more))])
            result.add([], Ratio("epochal", peer, case, "s", making.around(1.1)))
    return result


def hostile(making: Making) -> Result:
    """With names that nobody should choose."""
    result = Result("hostile", ROUNDS)
    for job in (HOSTILE, LONG):
        case = {"what": HOSTILE}
        result.add([Measure(job, {**case, "rows": rows}, HOSTILE, making.around(1.3)) for rows in (1, 10, 100)])
        result.add([Measure(job, {**case, "phase": phase}, "s", making.around(1.3)) for phase in (HOSTILE, LONG)])
        result.add([], *(Ratio(job, peer, case, "s", making.around(1.1)) for peer in (f"{HOSTILE} αβγ 中文", LONG)))
    result.facts[HOSTILE] = HOSTILE
    return result


FORMS: Sequence[Callable[[Making], Result]] = (
    throughput,
    small,
    growth_postgres,
    growth_kafka,
    growth_delta,
    memory,
    recovery,
    consistency,
    latency,
    hostile,
)


def _table(form: Callable[[Making], Result]) -> str:
    return form.__name__.replace("_", "-")


ABOUT: Mapping[str, str] = {_table(form): f"what {_table(form)} is about" for form in FORMS} | {
    "reader-view": "what nobody has measured yet"
}
RUNS: Mapping[str, str] = {"20261123T101500Z": "b3fe1aa", "20261125T231000Z": "77c0ffee-dirty"}


def write(folder: Path, forms: Sequence[Callable[[Making], Result]] = FORMS, runs: Mapping[str, str] = RUNS) -> None:
    """Stored as the benchmarks store it."""
    for seed, (when, commit) in enumerate(runs.items()):
        at = f"{when[:4]}-{when[4:6]}-{when[6:8]}T{when[9:11]}:{when[11:13]}:{when[13:15]}+00:00"
        for form in forms:
            made = form(Making(seed))
            environment = {**ENVIRONMENT, "commit": commit, "when": at}
            told = {**made.to_json(), "version": VERSION, "environment": environment}
            if form is consistency:
                told["cells"] = cells(Making(seed))
            quick = "-quick" if made.quick else ""
            (folder / f"{made.table}{quick}-{when}.json").write_text(json.dumps(told))
