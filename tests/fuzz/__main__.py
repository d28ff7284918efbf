"""Random pipelines on real servers: each must be right, or be refused by a named error before anything is decided.

    python -m tests.fuzz --count 2000 --seed 1     # the pipelines 0 to 1999 of a seed
    python -m tests.fuzz --seed 1 --only 17        # one of them again
    python -m tests.fuzz --seed 1 --only 17 --show # what it is, without running it

Exit status 0: every pipeline was right or was refused by name.  Each one that was not is printed, with a smaller one
that fails alike.  At the end, all refusals are listed with their numbers: a person judges whether they are just.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.fuzz.plans import plan


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--count", type=int, default=100, help="how many pipelines (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of some pipelines")
    parser.add_argument("--show", action="store_true", help="print the pipelines, and run none")
    parser.add_argument("--as-is", action="store_true", help="look for no smaller pipeline that fails alike")
    asked = parser.parse_args(arguments)
    numbers = asked.only if asked.only is not None else range(asked.first, asked.first + asked.count)
    print(f"seed {asked.seed}, pipelines {numbers}", flush=True)
    if asked.show:
        print("\n\n".join(f"pipeline {number}\n{plan(asked.seed, number)}" for number in numbers))
        return 0
    return _run(asked.seed, numbers, shrink=not asked.as_is)


def _run(seed: int, numbers: Sequence[int], *, shrink: bool) -> int:
    import logging

    from epochal.chaos import servers
    from epochal.chaos.job import jvm
    from epochal.chaos.servers.spark import spark_session
    from tests.fuzz.run import Bounded, run
    from tests.fuzz.trial import Servers

    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="epochal-fuzz-"))
        postgres, kafka = servers.choose_postgres(), servers.choose_kafka()
        for server in (postgres, kafka):
            opened.callback(server.close)
            server.start()
        spark = spark_session("local[2]", app="epochal-fuzz", conf=jvm.short_lived())
        opened.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        dsn = postgres.create_database("fuzz")
        shared = opened.enter_context(Servers.using(spark, dsn, kafka.bootstrap, Path(folder)))
        report = run(Bounded(shared), seed, numbers, lambda text: print(text, flush=True), shrink=shrink)
        print(*(f"{count:5} {kind}" for kind, count in sorted(report.sinks.items())), sep="\n")
        print("\nRefused by name:")
        print(*(f"{count:5} {stage}: {told}" for (stage, told), count in _sorted(report.refusals)), sep="\n")
        print(f"\nseed {seed}: {report}; failed: {report.failed or 'none'}", flush=True)
        return 1 if report.failed else 0


def _sorted(found: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    return sorted(found.items(), key=lambda item: item[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
