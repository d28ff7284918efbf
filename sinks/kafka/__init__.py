"""How does Kafka hold, show and prove an epoch?

Every epoch is one transaction with rows and marker; with ``slots=``, several.  There are three ways to write it:

    step      before the decision (votes=True)            after the decision             idempotent mode
    stage     staging.py, if the sink is alone            -                              -
    prepare   preparing.py, then voting.py                preparing.py                   -
    commit    ending.py: one request                      committing.py, produce.py      applying.py, produce.py
    recover   again.py, or the next column                the same again                 the same again

``delivery/`` says how the first way works and why it is exactly once.  ``possible.py`` says when it cannot be taken.
``failures.py`` turns its errors into those of a sink.

On the driver: ``sink.py`` has the arguments (checked by ``arguments.py``) and the methods of the sink.  Beside the
files above, ``starting.py`` implements create and check, ``fencing.py`` look, fence and abort, ``judging.py`` what
becomes of each row, ``inspection.py`` what the console asks.  ``core.py`` has what they share.
In a task: ``produce.py`` makes one attempt at one epoch, in one ``transaction.py``; ``encode.py`` makes records before
the decision where they must be kept; ``batches/`` makes record batches.
What Kafka holds: ``marker.py`` fence and marker, ``slots.py`` several transactions per epoch, ``audit.py`` past epochs,
``topics.py`` the topics, ``rows.py`` rows as records, ``objections.py`` rows that Kafka cannot hold.
How brokers are reached: ``client.py`` with librdkafka, ``wire/`` without it, for the first way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.coordinator.environment.lazy import when_asked

if TYPE_CHECKING:
    from epochal.sinks.kafka.sink import KafkaSink
else:
    __getattr__, __dir__ = when_asked(globals(), {"KafkaSink": "epochal.sinks.kafka.sink"})

__all__ = ["KafkaSink"]
