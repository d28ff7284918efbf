"""The error for a server that tests and demo need. Production code never raises it."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """A server, or a part that it needs, is not available here or does not work."""

    def __init__(self, what: str, help_line: str, log: str = "") -> None:
        self.what, self.help_line, self.log = what, help_line, log
        tail = f"\n--- end of its log ---\n{log}" if log else ""
        super().__init__(f"{what}{tail}\nHelp: {help_line}")
