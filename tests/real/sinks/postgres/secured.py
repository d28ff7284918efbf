"""A Postgres that lets one user in, over TLS and with a password; its certificate is for ``localhost``."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from epochal.chaos.servers import java
from epochal.chaos.servers.postgres import PostgresServer, binaries_with_tls
from tests.real.sinks.postgres.support import PASSWORD

USER = "writer"
STORE_PASSWORD = "of-the-key-store"
HBA = f"hostssl all {USER} 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"


class SecuredPostgres(PostgresServer):
    """``dsn`` and its like are the superuser's, who needs nothing of that."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(bin=binaries_with_tls())
        self._spark = spark
        self._settings |= {"ssl": "on", "ssl_cert_file": str(self._pem("server")), "ssl_key_file": str(self._key)}

    @property
    def authority(self) -> Path:
        """Who has this certificate knows the server."""
        return self._pem("authority")

    @property
    def other_authority(self) -> Path:
        """A certificate that has nothing to do with the server."""
        return self._pem("other")

    def keywords(self, database: str, **changed: str) -> Mapping[str, str]:
        """How the user connects."""
        return {
            "host": "localhost",
            "port": str(self.port),
            "user": USER,
            "password": PASSWORD,
            "dbname": database,
            "sslmode": "verify-full",
            "sslrootcert": str(self.authority),
            **changed,
        }

    def database_dsn(self, database: str, user: str | None = None, port: int | None = None) -> str:
        """Whatever the environment says, which a test may have changed."""
        return f"{super().database_dsn(database, user, port)}?sslmode=disable"

    def database_of_user(self, name: str) -> None:
        """An empty database that belongs to the user, who is made with the first."""
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=60) as connection:
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [USER]).fetchone() is None:
                connection.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'".encode())
                connection.execute(f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {USER}".encode())
            connection.execute(f"CREATE DATABASE {name} OWNER {USER}".encode())

    def _prepare(self) -> None:
        super()._prepare()
        (self._data / "pg_hba.conf").write_text(HBA)
        self._keytool("authority", "-genkeypair", "-ext", "bc:c=ca:true")
        self._keytool("server", "-genkeypair", "-signer", "authority", "-ext", "san=dns:localhost")
        self._keytool("other", "-genkeypair", "-ext", "bc:c=ca:true")
        for alias in ("authority", "server", "other"):
            self._keytool(alias, "-exportcert", "-rfc", "-file", str(self._pem(alias)))
        self._export_key()

    def _pem(self, alias: str) -> Path:
        return self.directory / f"{alias}.pem"

    @property
    def _key(self) -> Path:
        return self.directory / "server.key"

    def _keytool(self, alias: str, verb: str, *more: str) -> None:
        """Of any Java, also of one that comes without the command."""
        argv = [str(java.java_home() / "bin" / "java"), "-m", "java.base/sun.security.tools.keytool.Main", verb]
        new = ["-keyalg", "EC", "-groupname", "secp256r1", "-dname", f"CN={alias}", "-validity", "30"]
        store = ["-alias", alias, "-keystore", str(self._store), "-storepass", STORE_PASSWORD, "-storetype", "PKCS12"]
        made = [*argv, *(new if verb == "-genkeypair" else []), *more, *store]
        subprocess.run(made, check=True, capture_output=True, timeout=120)

    @property
    def _store(self) -> Path:
        return self.directory / "store.p12"

    def _export_key(self) -> None:
        """What keytool cannot do: the server's key as Postgres reads it, for its eyes only."""
        jvm = self._spark._jvm
        assert jvm is not None
        holder = jvm.org.apache.hadoop.conf.Configuration(False)  # it hands out characters, as a key store wants them
        holder.set("secret", STORE_PASSWORD)
        secret = holder.getPassword("secret")
        store = jvm.java.security.KeyStore.getInstance(jvm.java.io.File(str(self._store)), secret)
        encoded = jvm.java.lang.Class.forName("java.security.spec.PKCS8EncodedKeySpec")
        spec = jvm.java.security.KeyFactory.getInstance("EC").getKeySpec(store.getKey("server", secret), encoded)
        key = base64.encodebytes(bytes(spec.getEncoded())).decode()
        self._key.touch(mode=0o600)
        self._key.write_text(f"-----BEGIN PRIVATE KEY-----\n{key}-----END PRIVATE KEY-----\n")
        owner = self._command()
        if owner.user is not None:
            os.chown(self._key, owner.user, owner.group or 0)
