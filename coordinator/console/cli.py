"""The entry point of the console command ``epochal``.  Parts of it are imported only when they are used."""

from __future__ import annotations

import importlib.metadata
import signal
import sys
from typing import Any

GROUP = "epochal.commands"
"""Entry points that add a group of commands.  The chaos kit is one, so no production code imports it."""
CHAOS = "Inject faults (kill, pause, cut) and check what is left (needs the extra chaos)."


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit in this process, so that it first ends the processes that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _commands(name: str) -> Any:
    """Return the typer app that is registered under ``name``.

    Raise ``ImportError`` if there is none, or if a package that it needs is missing.
    """
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        return entry.load()
    raise ImportError(f"no entry point {name} in the group {GROUP}: this installation is incomplete")


def main() -> int:
    """Run the console command.  Exit codes: 0 fine, 1 found something wrong, 2 wrong usage, 3 cannot tell."""
    try:
        import rich  # noqa: F401
        import typer
    except ImportError:
        print("epochal: the console command needs more packages: pip install 'epochal[console]'", file=sys.stderr)
        return 2
    from epochal.coordinator.console.app import add_to

    app = typer.Typer(
        name="epochal",
        help="Exactly-once sinks for Spark Structured Streaming.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(exit_on_sigterm)
    add_to(app)
    if sys.argv[1:2] == ["chaos"]:
        try:
            app.add_typer(_commands("chaos"), name="chaos")
        except ImportError as missing:
            print(f"epochal chaos: {missing}: pip install 'epochal[chaos]'", file=sys.stderr)
            return 2
    else:
        app.command("chaos", help=CHAOS)(lambda: None)  # only for the list: the kit is imported when it is used
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
