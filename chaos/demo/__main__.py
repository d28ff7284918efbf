"""`python -m epochal.chaos.demo` runs the same job twice under the same kinds of faults: plain, and with Epochal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """\
Runs one Spark job twice, side by side.  Both read 336,776 flights from a Kafka topic and write them to Postgres, Kafka
and Delta: one job is a plain foreachBatch, the other one uses Epochal.  Drivers, a worker, a broker and a database are
killed at named points.  Then readers that know nothing of Spark or Epochal compare every row with what was expected.

It starts its own servers in a temporary folder.  It takes about 3 minutes on two cores.  The first time it takes
longer, because jars are downloaded.
"""
EXIT_CODES = """\
exit codes:
  0    shown: with Epochal every sink is exact, the plain job's are not, and recovery both finished decided epochs
       and dropped undecided ones
  1    the demo ran to its end, but did not show this
  2    the demo did not run to its end, or wrong arguments; the servers are stopped, and the path of the logs is printed
  130  interrupted, 143 terminated: everything is stopped and removed
Under make every exit code but 0 becomes 2; make prints the one of this program as `Error 1`.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. `KEEP=1` in the environment, as `make demo KEEP=1` sets it, means `--keep`."""
    parser = argparse.ArgumentParser(
        prog="python -m epochal.chaos.demo",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        default=os.environ.get("KEEP", "") not in ("", "0"),
        help="leave servers and data when the demo is at its end, and print the commands that show the results and"
        " that stop the servers (or set KEEP=1)",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        default=os.environ.get("FULL", "") not in ("", "0"),
        help="three times as many epochs and one strike more (or set FULL=1)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("artifacts"),
        metavar="FOLDER",
        help="where demo.html and demo.json of the run are written (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit code."""
    options = parse(arguments)
    try:
        from epochal.chaos.demo.run import run
    except ImportError as missing:
        print(f"the demo cannot be run: {missing}\nHelp: pip install 'epochal[chaos]'", file=sys.stderr)
        return 2
    return run(keep=options.keep, full=options.full, pages=options.page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
