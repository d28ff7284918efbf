"""Create the topics, and check before a start what a broker, a topic or an executor would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from epochal.coordinator.model.epoch import Query
from epochal.coordinator.model.errors import EpochalError, Misconfigured
from epochal.sinks.clocks import of_newest_record
from epochal.sinks.kafka import encode, possible, produce, topics
from epochal.sinks.kafka.batches import frame
from epochal.sinks.kafka.client import SMALLEST_QUEUE_KB, Link, Options, kafka, log
from epochal.sinks.kafka.core import Core
from epochal.sinks.kafka.delivery import libraries
from epochal.sinks.kafka.marker import MarkerTopic
from epochal.sinks.kafka.topics import Topics
from epochal.sinks.kafka.transaction import Transaction
from epochal.sinks.protocol import Schema
from epochal.sinks.questions import Answer, Question, require
from epochal.sinks.spark.executors import check_executors


def create(sink: Core, query: Query, schema: Schema) -> Sequence[str]:
    """Make the target topics and the marker topic if they are missing; return a line for each thing that was done."""
    marker_topic = sink.marker_topic(query)
    sink.check_schema(schema)
    made = sink.partitions, sink.replication, sink.topic_config, sink.slots
    return topics.create(sink.link(), sink.declared, marker_topic, *made)


CLIENT, TOPICS, TIMEOUT, OPTIONS = "client", "topics", "transaction timeout", "options of the client"
"""Questions that others need."""

_HARMLESS = {
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "enable.ssl.certificate.verification"),
    *("compression.type", "compression.codec", "linger.ms", "queue.buffering.max.ms", "batch.size"),
    *("queue.buffering.max.kbytes", "queue.buffering.max.messages", "socket.timeout.ms", "broker.address.family"),
}
"""Options whose values are shown."""


def check(sink: Core, query: Query, schema: Schema) -> None:
    """Raise ``Misconfigured`` for what brokers, topics or executors would refuse later; log cautions about topics."""
    require(questions(sink, query, schema), lambda caution: log.warning("sink %s: %s", sink.name, caution))


def questions(sink: Core, query: Query, schema: Schema | None) -> Iterator[Question]:
    """See ``epochal.sinks.questions.Questioned``."""
    marker_topic = sink.marker_topic(query)
    yield Question(CLIENT, told_client)
    yield Question("columns of the rows", lambda: sink.check_schema(sink.encoding.projection.known(schema)))
    there = There(sink, marker_topic)
    yield Question(OPTIONS, there.told_options, (CLIENT,))
    yield Question(TOPICS, there.told_topics, (OPTIONS,))
    yield Question("clock", there.compared, (TOPICS,))
    yield Question(TIMEOUT, lambda: f"{there.timeout:g} s", (TOPICS,))
    for question in there.questions_of_topics():
        yield replace(question, needs=(TOPICS, TIMEOUT))
    yield Question("options as librdkafka reads them", there.refuse_options, (TOPICS, TIMEOUT))
    yield Question("queue of the client", there.refuse_queue, (OPTIONS,))
    yield Question("options can be sent to tasks", lambda: check_sendable(there.link), (OPTIONS,))
    yield Question("executors", there.check_executors, ("options as librdkafka reads them",))
    if sink.make_value is not None:
        made = partial(encode.check, sink.make_value, sink.name)
        yield Question("function of the value", lambda: made(there.link.scrub), (OPTIONS,))
    yield Question("what readers may lose", lambda: Answer(cautions=topics.cautions(there.topics)), (TOPICS,))


def told_client() -> str:
    """Return the versions of the client libraries; ``Misconfigured`` if they are not installed."""
    module = kafka()
    return f"confluent-kafka {module.__version__}, librdkafka {module.libversion()[0]}"


class There:
    """The cluster as it is now: each thing is read once, and when it is first needed."""

    def __init__(self, sink: Core, marker_topic: MarkerTopic) -> None:
        self._sink, self._marker_topic = sink, marker_topic

    @cached_property
    def link(self) -> Link:
        return self._sink.link()

    @cached_property
    def topics(self) -> Topics:
        return topics.describe(self.link, self._sink.declared, self._marker_topic)

    @cached_property
    def timeout(self) -> float:
        return self._sink.timeout(self.link)

    @cached_property
    def tuning(self) -> Options:
        limits = [target.batch_bytes for target in self.topics.targets.values()]
        return produce.tuning(self.link, self._sink.encoding.partitioner, limits)

    def told_options(self) -> str:
        """Return the options by name.  Values are shown only of those that can never hold a secret."""
        given = self.link.options.items()
        told = [f"{name}={value}" if name in _HARMLESS else name for name, value in sorted(given)]
        return f"bootstrap servers {self.link.bootstrap}; {', '.join(told) or 'no options'}"

    def told_topics(self) -> str:
        found = (*self.topics.targets.values(), self.topics.marker)
        of_each = [f"{each.name}: {each.partitions} partitions, {each.replicas} replicas" for each in found]
        return f"cluster {self.topics.cluster}; {'; '.join(of_each)}"

    def compared(self) -> Answer:
        """Look at the clock, as far as it is known.  A broker that does not answer this changes nothing."""
        topic = self.topics.marker.name
        try:
            return of_newest_record(topic, topics.newest_timestamp(self.link, topic))
        except EpochalError as error:
            return Answer(f"not known: {error.what}")

    def questions_of_topics(self) -> Iterator[Question]:
        sink = self._sink
        where = self._marker_topic, sink.encoding.key, sink.slots
        return topics.questions(
            lambda: self.link, sink.declared.names, *where, lambda: self.topics, lambda: self.timeout
        )

    def refuse_options(self) -> None:
        """Let librdkafka check the options; no broker is asked."""
        Transaction(self.link, self._marker_topic, self.timeout, self.tuning).drop()

    def refuse_queue(self) -> str:
        check_queue(self.link)
        return f"{self.link.queue_bytes // 1024} kB"

    def check_executors(self) -> Answer:
        """Ask one executor.  If it can write votes, the first epoch of this start need not ask again."""
        sink = self._sink
        if possible.reason_of_arguments(sink) is not None:
            return self._ask_executor(["numpy"] if sink.slots > 1 else [])
        try:
            answer = self._ask_executor(frame.LIBRARIES, libraries.PACKAGES, frame.lacking)
            sink.workers_lack = ""
            return answer
        except Misconfigured as lacking:
            answer = self._ask_executor([])  # raises what every way needs
            told = f"{possible.REDONE}: {lacking.what}; to change that, {lacking.help}"
            return replace(answer, cautions=(*answer.cautions, told))

    def _ask_executor(
        self, more: Sequence[str], packages: str | None = None, lacking: Callable[[], str] | None = None
    ) -> Answer:
        packages = packages or " ".join(["'epochal[kafka]' pyarrow", *more])
        reach = partial(reached, self.link, self._marker_topic, self.timeout, self.tuning)
        return check_executors(self._sink.name, ["confluent_kafka", *more], packages, reach, lacking)


def check_queue(link: Link) -> None:
    """Raise ``Misconfigured`` if the client's queue is too small for the records of the marker topic."""
    if link.queue_bytes < SMALLEST_QUEUE_KB * 1024:
        raise Misconfigured(
            f"the client's queue holds {link.queue_bytes // 1024} kB, and the records of the marker topic need"
            f" {SMALLEST_QUEUE_KB}",
            sink=link.sink,
            state=f"queue.buffering.max.kbytes {link.queue_bytes // 1024}",
            help=f"set queue.buffering.max.kbytes in options= to {SMALLEST_QUEUE_KB} or more, and above the largest row"
            " in kilobytes",
        )


def check_sendable(link: Link) -> None:
    """Raise ``Misconfigured`` if the options cannot be sent to the tasks that produce."""
    try:
        from pyspark import cloudpickle
    except ImportError:  # without Spark there are no tasks
        return
    dumps: Any = cloudpickle.dumps
    try:
        dumps(link)
    except Exception as error:
        raise Misconfigured(
            f"options= cannot be sent to a task: {link.scrub(f'{type(error).__name__}: {error}')}",
            sink=link.sink,
            state=f"options {sorted(link.options)}",
            help="pass callbacks that can be pickled: functions that hold no lock, socket, file or client",
        ) from None


def reached(link: Link, marker_topic: MarkerTopic, timeout: float, tuning: Options) -> str:
    """Return why a producer of this process cannot reach the cluster; "": it can.  Runs on an executor."""
    try:
        producer = link.producer(marker_topic.transactional_id, timeout, tuning)
        producer.list_topics(marker_topic.topic, link.timeout)
    except (Misconfigured, kafka().KafkaException) as error:
        return link.scrub(error.what if isinstance(error, Misconfigured) else error.args[0].str())
    return ""
