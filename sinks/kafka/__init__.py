"""How does Kafka hold, show and prove an epoch?

The Kafka sink: every epoch is one transaction, rows and marker together, redone from the durable copy.

``sink.py`` the verbs (driver) · ``marker.py`` fence and marker, how they are read and judged ·
``audit.py`` the epochs that they tell of ·
``slots.py`` several transactions per epoch, and why that is exactly once · ``produce.py`` one attempt at one
epoch (task) · ``rows.py`` what a row is in Kafka · ``encode.py`` records that are made before the vote (task)
· ``objections.py`` what of an epoch cannot be written · ``topics.py`` the topics, and what is wrong with them
· ``client.py`` settings, clients, and what their errors mean
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.coordinator.environment.lazy import when_asked

if TYPE_CHECKING:
    from epochal.sinks.kafka.sink import KafkaSink
else:
    __getattr__, __dir__ = when_asked(globals(), {"KafkaSink": "epochal.sinks.kafka.sink"})

__all__ = ["KafkaSink"]
