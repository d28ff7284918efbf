"""The Kafka sink: every epoch is one transaction, rows and marker together, redone from the durable copy.

``sink.py`` the six verbs (driver) · ``marker.py`` fence and marker, how they are read and judged ·
``produce.py`` one attempt at one epoch (task) · ``rows.py`` what a row is in Kafka · ``client.py`` settings,
clients, and what their errors mean
"""

from __future__ import annotations

from epochal.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
