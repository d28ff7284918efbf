"""A real HDFS on loopback: one name node and one data node in one process, from Hadoop's Maven jars."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochal.chaos.servers import jars, java
from epochal.chaos.servers.process import GONE_TIMEOUT_S, LOOPBACK, Command, Server, free_port
from epochal.coordinator.environment.versions import HDFS_JARS

if TYPE_CHECKING:
    from epochal.checkpoints.hadoop import Hadoop

JVM_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class HdfsServer(Server):
    """An HDFS at `uri`. A crash kills name node and data node; the next start has all that they had confirmed."""

    kind = "hdfs"

    def __init__(self) -> None:
        self._class_path = ":".join(map(str, class_path()))
        self._java = java.java_home() / "bin" / "java"
        super().__init__()
        self._http_port = free_port()
        self._data = self.directory / "data"
        self._details = self.directory / "details.json"
        self._log4j = self.directory / "log4j2.properties"
        self._format = True

    @property
    def uri(self) -> str:
        """The address as `hdfs://host:port`, without a slash at the end."""
        return f"hdfs://{self.address}"

    def synced(self) -> int:
        """Return how often the data node has synced a block to its disk since it started.

        The number may be some seconds old.
        """
        query = "qry=Hadoop:service=DataNode,name=DataNodeActivity*"
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self._http_port}/jmx?{query}", timeout=60) as page:
            return sum(int(bean["FsyncCount"]) for bean in json.load(page)["beans"])

    def _prepare(self) -> None:
        self._log4j.write_text(LOG4J)
        (self.directory / "hadoop-metrics2.properties").write_text("*.period=1\n")

    def _recover(self) -> None:
        self._details.unlink(missing_ok=True)  # the cluster writes it when everything is up

    def _command(self) -> Command:
        ports = ["-nnport", str(self.port), "-httpport", str(self._http_port)]
        cluster = ["org.apache.hadoop.test.MiniDFSClusterManager", "-datanodes", "1", *ports]
        fresh = ["-format"] if self._format else []
        self._format = False
        properties = [f"-Dlog4j2.configurationFile={self._log4j}", f"-Dtest.build.data={self._data}"]
        argv = [str(self._java), *JVM_OPTIONS, *properties, "-cp", f"{self.directory}:{self._class_path}"]
        return Command([*argv, *cluster, *fresh, "-writeDetails", str(self._details)])

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            json.loads(self._details.read_text())
            with socket.create_connection((LOOPBACK, self.port), timeout=1):
                return True
        return False


def class_path() -> list[Path]:
    """Return the cluster's jars, and PySpark's Hadoop client with everything that it needs."""
    return [*jars.resolve(HDFS_JARS), *sorted(jars.of_pyspark().glob("*.jar"))]


class HadoopClient:
    """A Hadoop client for a ``HadoopLog``, in a JVM without Spark. The JVM ends with the block or with this process."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})

    def __enter__(self) -> Hadoop:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        folder = jars.of_pyspark()
        port, token, self._process = launch_gateway(
            jarpath=str(next(folder.glob("py4j-*.jar"))),
            classpath=os.pathsep.join(map(str, folder.glob("*.jar"))),
            javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            java_path=str(java.java_home() / "bin" / "java"),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self._at_end = contextlib.ExitStack()
        self._at_end.callback(self._stop)
        self._at_end.enter_context(_own_errors(self._gateway._gateway_client))
        conf: Any = self._gateway.jvm.org.apache.hadoop.conf.Configuration()
        for name, value in self._settings.items():
            conf.set(name, value)
        return self._gateway.jvm, conf

    def __exit__(self, *_: object) -> None:
        self._at_end.close()

    def _stop(self) -> None:
        self._gateway.close()
        self._process.kill()
        self._process.wait(GONE_TIMEOUT_S)
        self._process.stdin.close()


@contextlib.contextmanager
def _own_errors(client: object) -> Iterator[None]:
    """Keep PySpark from converting this client's Java exceptions.

    PySpark treats every Java exception as one from Spark's JVM. There, the id of this exception names another object.
    """
    from pyspark.errors.exceptions import captured

    of_spark = captured.convert_exception

    def convert(error: Any) -> Any:
        if error._gateway_client is client:
            return captured.UnknownException(desc=error.toString(), stackTrace="")  # then py4j's own error is raised
        return of_spark(error)

    captured.convert_exception = convert  # type: ignore[assignment]
    try:
        yield
    finally:
        captured.convert_exception = of_spark
