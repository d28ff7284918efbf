"""The settings of Spark that helps of errors name are settings of this Spark."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from docs import generate

OF_PYSPARK = {"spark.remote", "spark.api.mode"}
"""Read by PySpark before there is a JVM."""
NO_ENTRIES = {"spark.readStream", "spark.delta.logStore", "spark.delta.logStore.class"}
"""The session's own, and settings of Delta that its log store reads by their names."""


def test_every_setting_that_a_help_names_is_one(spark: SparkSession) -> None:
    texts = [text for message in generate.messages() for text in message.helps]
    named = {name for text in texts for name in re.findall(r"\bspark(?:\.\w+)+", text)} - OF_PYSPARK
    jvm: Any = spark._jvm
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    jvm.org.apache.spark.sql.internal.SQLConf.get()  # registers those of SQL
    unknown = {name for name in named if entries.findEntry(name) is None}
    assert named
    assert unknown <= NO_ENTRIES
