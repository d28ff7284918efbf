"""A real S3 server on loopback: the Versity S3 Gateway, which keeps each object as a file below a folder.

Its conditional put is atomic: it looks whether the name is free and makes the file under a lock of that name.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from epochal.chaos.servers import go
from epochal.chaos.servers.process import LOOPBACK, Command, Server
from epochal.coordinator.environment.versions import VERSITYGW

ACCESS_KEY = "epochal"
SECRET_KEY = "s3cr3t-of-the-gateway"
REGION = "us-east-1"
HEALTH = "/health"


class S3Server(Server):
    """An S3 server with one bucket. A crash kills it; the next start has every object that it had confirmed."""

    kind = "s3"
    bucket = "lake"

    @property
    def endpoint(self) -> str:
        """The address as `http://host:port`."""
        return f"http://{self.address}"

    def url(self, path: str) -> str:
        """Return the URL of an object, or of a folder, of the bucket."""
        return f"s3a://{self.bucket}/{path}"

    @property
    def options(self) -> dict[str, Any]:
        """What a client of obstore needs besides the URL."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": REGION,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables of the environment."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",  # for delta-rs
        }

    @property
    def hadoop_conf(self) -> dict[str, str]:
        """The same as settings of a Spark session."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
        }

    @property
    def files(self) -> Path:
        """The folder with the bucket's objects."""
        return self.directory / "buckets" / self.bucket

    def _prepare(self) -> None:
        self._binary = binary()
        self.files.mkdir(parents=True)

    def _command(self) -> Command:
        keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
        listen = ["--port", f"{LOOPBACK}:{self.port}", "--health", HEALTH, "--quiet"]
        return Command([str(self._binary), *keys, *listen, "posix", str(self.files.parent)])

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}{HEALTH}", timeout=1):
                return True
        except OSError:
            return False


def binary() -> Path:
    """Return the gateway of the pinned version, built once into the cache."""
    return go.program("versitygw", "github.com/versity/versitygw/cmd/versitygw", VERSITYGW)
