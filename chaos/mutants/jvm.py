"""Keeps one Java process for Spark sessions of other processes, which use it one after the other.

It ends when its input ends.  A session that starts its own Java takes ten times as long as most tests with a session.
"""

from __future__ import annotations

import json
import sys

from epochal.chaos.servers.spark import jars_of_sessions, prepare_environment, spark_conf


def main() -> None:
    """Start the Java process, print its address, and wait for the end of the input."""
    prepare_environment()
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf()
    conf.setAll(list(spark_conf({"spark.jars": ",".join(map(str, jars_of_sessions()))}).items()))
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    where = gateway.gateway_parameters
    print(json.dumps({"port": where.port, "secret": where.auth_token}), flush=True)
    sys.stdin.read()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)


if __name__ == "__main__":
    main()
