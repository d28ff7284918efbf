"""A pgbouncer in transaction mode before a Postgres, which hands every transaction another back-end where it can."""

from __future__ import annotations

import shutil

from epochal.chaos import servers
from epochal.chaos.servers.errors import ServerUnavailable
from epochal.chaos.servers.postgres import Databases, as_ordinary_user
from epochal.chaos.servers.process import LOOPBACK, Command, Server

SETTINGS = """[databases]
* = host={host} port={upstream}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
server_round_robin = 1
default_pool_size = 20
max_client_conn = 200
"""


class PgBouncer(Server, Databases):
    """``dsn`` and its like lead through it."""

    kind = "pgbouncer"

    def __init__(self, behind: servers.Postgres) -> None:
        super().__init__()
        self._upstream = behind.address.rpartition(":")[2]

    def _prepare(self) -> None:
        users = self.directory / "users.txt"
        users.write_text('"postgres" ""\n')
        settings = SETTINGS.format(host=LOOPBACK, upstream=self._upstream, port=self.port, users=users)
        (self.directory / "pgbouncer.ini").write_text(settings)

    def _command(self) -> Command:
        program = shutil.which("pgbouncer")
        if program is None:
            raise ServerUnavailable("no program pgbouncer on PATH", "install it by your system's packages")
        return as_ordinary_user([program, str(self.directory / "pgbouncer.ini")])

    def _ready(self) -> bool:
        return self.answers()
