"""Keeps one Java process that Spark sessions of other processes use, one after the other; ends with its input.

A session that starts its own Java takes ten times as long as most tests that need one.
"""

from __future__ import annotations

import json
import sys

from epochal.chaos.servers.spark import prepare_environment, spark_conf


def main() -> None:
    """Start it, say where it is, and wait."""
    prepare_environment()
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf()
    conf.setAll(list(spark_conf().items()))
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    where = gateway.gateway_parameters
    print(json.dumps({"port": where.port, "secret": where.auth_token}), flush=True)
    sys.stdin.read()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)


if __name__ == "__main__":
    main()
