"""How does Kafka hold, show and prove an epoch?

Kafka holds no prepared rows.  Every epoch is one transaction with rows and marker; with ``slots=``, several.  It is
made from the durable copy after the decision; in idempotent mode, from the micro-batch itself.

On the driver: ``sink.py`` has the arguments and the methods of the sink.  ``starting.py``, ``fencing.py``,
``judging.py``, ``preparing.py``, ``committing.py`` and ``applying.py`` implement these methods.  ``core.py`` has what
they share.
In a task: ``produce.py`` makes one attempt at one epoch, in one ``transaction.py``; ``encode.py`` makes records before
the vote.
What Kafka holds: ``marker.py`` fence and marker, ``slots.py`` several transactions per epoch, ``audit.py`` past epochs,
``topics.py`` the topics, ``rows.py`` rows as records, ``objections.py`` rows that Kafka cannot hold.
``client.py`` has the clients and their options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.coordinator.environment.lazy import when_asked

if TYPE_CHECKING:
    from epochal.sinks.kafka.sink import KafkaSink
else:
    __getattr__, __dir__ = when_asked(globals(), {"KafkaSink": "epochal.sinks.kafka.sink"})

__all__ = ["KafkaSink"]
