"""Spark's Kafka sink in foreachBatch.  Readers see an epoch row by row; after a crash, rows are there twice.

epochal chaos run --server kafka --target examples.chaos.kafka_sink:write --reader examples.chaos.kafka_sink:read
"""

import json
import os

SERVERS = os.environ.get("EPOCHAL_CHAOS_KAFKA", "localhost:9092")
TOPIC = os.environ.get("EPOCHAL_CHAOS_RUN", "chaos")


def write(df, epoch):
    kafka = df.selectExpr("to_json(struct(*)) AS value").write.format("kafka")
    kafka.option("kafka.bootstrap.servers", SERVERS).option("topic", TOPIC).save()


def read():
    from epochal.chaos.demo.readers import committed_records

    return [json.loads(record.value()) for record in committed_records(SERVERS, TOPIC)]
