"""Ports of servers: what one process has taken, no other takes, whether something listens there or not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.process import PORTS, Ports

FEW = range(PORTS.stop, PORTS.stop + 6)  # no other run takes these: its ports end before them
TAKE_ALL = """
import sys
from pathlib import Path
from epochal.chaos.servers.process import Ports
ports = Ports(range(int(sys.argv[1]), int(sys.argv[2])), file=Path(sys.argv[3]))
print(*(ports.take() for _ in range(int(sys.argv[4]))), flush=True)
sys.stdin.read()
"""


def other_process(file: Path, number: int) -> subprocess.Popen[str]:
    """A process that takes `number` of the few ports, prints them, and keeps them until its input ends."""
    command = [sys.executable, "-c", TAKE_ALL, str(FEW.start), str(FEW.stop), str(file), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_port_is_taken_once_though_nothing_listens_on_it(tmp_path: Path) -> None:
    ports = Ports(FEW, file=tmp_path / "ports")

    assert {ports.take() for _ in FEW} == set(FEW)

    with pytest.raises(ServerUnavailable, match=f"no free port found in {FEW.start} to {FEW.stop}"):
        ports.take()


def test_what_another_process_has_taken_is_not_free_until_it_ends(tmp_path: Path) -> None:
    other = other_process(tmp_path / "ports", 4)
    with other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = Ports(FEW, file=tmp_path / "ports")

        assert {ours.take(), ours.take()} == set(FEW) - theirs
        with pytest.raises(ServerUnavailable):
            ours.take()
        other.kill()

    assert {ours.take() for _ in range(4)} == theirs


def test_a_forked_child_takes_none_of_its_parent(tmp_path: Path) -> None:
    ports = Ports(FEW, file=tmp_path / "ports")
    ours = {ports.take() for _ in range(3)}
    child = os.fork()
    if child == 0:
        os._exit(0 if {ports.take() for _ in range(3)} == set(FEW) - ours else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {ports.take() for _ in range(3)} == set(FEW) - ours


def test_a_port_that_somebody_else_uses_is_not_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", FEW.start)):
        ports = Ports(FEW, file=tmp_path / "ports")

        assert {ports.take() for _ in FEW[1:]} == set(FEW[1:])
