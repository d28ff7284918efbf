"""What goes wrong with a server that tests and demo need; never raised by production code."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """A server, or a part that it is made of, cannot be had here."""

    def __init__(self, what: str, help_line: str, log: str = "") -> None:
        self.what, self.help_line, self.log = what, help_line, log
        tail = f"\n--- end of its log ---\n{log}" if log else ""
        super().__init__(f"{what}{tail}\nHelp: {help_line}")
