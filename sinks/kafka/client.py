"""How Epochal reaches a Kafka cluster: settings, clients, and what their errors mean.

Every client is made for one use and dropped: an admin client that lives through a restart of the broker
goes on failing, and a producer whose transaction failed must never be used again.  Every call is bounded.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from epochal.coordinator.model.errors import EpochalError, Misconfigured, SinkUnavailable
from epochal.sinks.kafka.wire import errors
from epochal.sinks.kafka.wire.errors import NotByHand
from epochal.sinks.kafka.wire.options import GUARANTEED
from epochal.sinks.kafka.wire.reach import Reach, reach_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
Options = Mapping[str, Any]
"""librdkafka's names and values, as its CONFIGURATION.md lists them."""

log = logging.getLogger("epochal.sinks.kafka")

OURS: Mapping[str, str] = {
    **dict.fromkeys(
        GUARANTEED, "is fixed: a row counts as written only when all replicas in sync have it, and never twice"
    ),
    **dict.fromkeys(("bootstrap.servers", "metadata.broker.list"), "is the first argument of KafkaSink"),
    "transactional.id": "is made of the app and the sink's name, which is how a restart finds its transaction",
    **dict.fromkeys(
        ("transaction.timeout.ms", "message.timeout.ms", "delivery.timeout.ms"), "follows from transaction_timeout="
    ),
    "partitioner": "is an argument of KafkaSink, and kept with every epoch",
    "message.max.bytes": "follows from max.message.bytes of the topics",
    **dict.fromkeys(
        (
            "isolation.level",
            "group.id",
            "auto.offset.reset",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "enable.partition.eof",
        ),
        "belongs to the consumer that reads the marker, and is fixed",
    ),
    **dict.fromkeys(
        ("enable.gapless.guarantee", "on_delivery", "error_cb", "logger", "enabled_events"), "is used by Epochal itself"
    ),
    "topic.blacklist": "would hide a topic from the producer, and from nothing that looks at the topic before",
    "internal.termination.signal": "would send a signal to the process, which may end it",
    "default.topic.config": "would overrule the fixed options: give the options in it directly",
}
"""Options that a user cannot set, because the promise rests on them: name to reason."""

_SHARED = re.compile(
    r"(api|allow|broker|client|connections|debug|enable\.(ssl|sasl|metrics)|https?|max\.in|metadata|oauth|open|"
    r"receive|reconnect|resolve|retry|sasl|security|socket|ssl|topic\.metadata)[._].*|debug|oauth_cb"
)
"""Options that also apply to consumers and admin clients; all others apply to producers only."""
ATTEMPT_S = 5.0
"""How many seconds the first attempt at an admin request gets; each later one gets twice as many."""
HEARD_S = 3.0
"""How many seconds a broker may take to hear of a topic that was made: brokers learn of it one after another."""
_NOT_HEARD = ("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART")
DEFAULT_QUEUE_KB = 1_048_576
"""How many kilobytes librdkafka's queue holds unless ``queue.buffering.max.kbytes`` says otherwise."""
SMALLEST_QUEUE_KB = 16
"""The smallest queue, in kilobytes, that a start accepts: a marker's record must fit into it."""
_SECRET = re.compile(r"password|secret|token|credential|jaas|key\.pem|oauthbearer\.config|assertion", re.I)

_REFUSED_HERE = ("_AUTHENTICATION", "_INVALID_ARG", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""Errors of the client itself that a new try cannot change; those of brokers are in ``wire/errors.py``."""
_FENCED_HERE = "_FENCED"
"""What the client itself calls it if this producer can write no more."""


def kafka() -> Any:
    """The module ``confluent_kafka``, or ``Misconfigured`` with the line that installs it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as missing:
        raise Misconfigured(
            f"the Kafka client library is missing: {missing}", help="pip install 'epochal[kafka]'"
        ) from None
    return confluent_kafka


def is_refused(error: KafkaError) -> bool:
    """Whether the broker would refuse the same request again."""
    return error.name() in _REFUSED_HERE or errors.is_refused(error.code())


def is_unknown(error: Exception) -> bool:
    """Whether a broker does not know a topic or a partition; it may be one that was just made."""
    cause = error.args[0] if error.args else None
    return isinstance(cause, kafka().KafkaError) and cause.name() in _NOT_HEARD


def is_fenced(error: KafkaError) -> bool:
    """Whether this producer can write no more, while a new producer may succeed.

    Another one was initialised, or its transaction was ended.
    """
    return error.name() == _FENCED_HERE or errors.is_fenced(error.code())


@dataclass(frozen=True)
class Link:
    """All that a process needs to reach the cluster.  It holds secrets: it is sent to tasks and never shown."""

    bootstrap: str
    sink: str
    timeout: float  # seconds that one request, with its retries, may take
    options: Options = field(default_factory=dict, repr=False)
    heard: list[str] = field(default_factory=list, repr=False, compare=False)  # the last error that the client reported

    def producer(self, transactional_id: str, transaction_timeout: float, more: Options) -> Producer:
        """Return a producer that never gives up a row before the timeout of its transaction is over."""
        milliseconds = int(transaction_timeout * 1000)
        settings = {
            "reconnect.backoff.ms": 10,
            "delivery.report.only.error": True,  # a report takes a fifth of a row's time; failures show at the commit
            **self.options,
            **self._common(),
            **more,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": milliseconds,
            "message.timeout.ms": milliseconds,
            "enable.idempotence": True,
            "acks": "all",
        }
        made: Producer = self._make(lambda: kafka().Producer(settings))
        return made

    def by_hand(self) -> Reach:
        """Return how brokers are reached without librdkafka; ``NotByHand`` for an option that only librdkafka has."""
        return reach_of(self.bootstrap, self.options, self.timeout)

    @property
    def queue_bytes(self) -> int:
        """How many bytes the producer's queue holds.  A row that is larger can never be sent."""
        return self.number("queue.buffering.max.kbytes", DEFAULT_QUEUE_KB) * 1024

    def number(self, option: str, default: int) -> int:
        """Return the value of an option that is a whole number."""
        value = self.options.get(option, default)
        try:
            return int(value)
        except (TypeError, ValueError):
            raise Misconfigured(
                f"the option {option}={value!r} is not a whole number",
                sink=self.sink,
                help="see librdkafka's CONFIGURATION.md for its values",
            ) from None

    @contextmanager
    def consumer(self, isolation: str = "read_committed") -> Iterator[Consumer]:
        """Yield a consumer that belongs to no group and reports when it has reached the end of a partition."""
        settings = {
            "reconnect.backoff.ms": 10,
            "fetch.wait.max.ms": 5,  # the end of a partition is reported only when a fetch comes back empty
            **self._shared(),
            **self._common(),
            "group.id": "epochal",  # librdkafka needs a name; no group is joined, no offset is stored
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
        made: Consumer = self._make(lambda: kafka().Consumer(settings))
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """Yield a client for topics, settings and offsets; afterwards it is destroyed.

        It must not be left to the garbage collector, which may run in a thread of the client itself, as answers become
        objects there.  librdkafka then ends the process.
        """
        settings = {"reconnect.backoff.ms": 10, **self._shared(), **self._common()}
        made: AdminClient = self._make(lambda: kafka().admin.AdminClient(settings))
        with made:
            yield made

    def answer(self, admin: AdminClient, future: Future[T]) -> T:
        """Return the result of an admin request, within the time limit; meanwhile errors of the client are recorded."""
        try:
            return future.result(self.timeout + 5)
        except FutureTimeout:  # only from Python 3.11 on a TimeoutError
            raise TimeoutError(f"no answer within {self.timeout + 5:g} s") from None
        finally:
            admin.poll(0)

    def ask(self, doing: str, call: Callable[[], T]) -> T:
        """Return what ``call`` reads; try again for as long as one request may take."""
        return self.ask_anew(doing, lambda _: call())

    def ask_anew(self, doing: str, call: Callable[[Link], T]) -> T:
        """As ``ask``; ``call`` gets a link for clients of its own, with which it has a part of the time.

        An admin client sends a request to the one broker that it was told to ask.  For some seconds after a broker has
        died, the others go on telling that one, and such a client then waits for it as long as it may.
        """
        heard, deadline, seconds = time.monotonic() + HEARD_S, self.deadline(), ATTEMPT_S
        while True:
            left = deadline - time.monotonic()
            try:
                return call(replace(self, timeout=min(self.timeout, max(1.0, min(seconds, left)))))
            except (kafka().KafkaException, TimeoutError) as error:
                failure = self.failure(error, doing)
                may_be_new = is_unknown(error) and time.monotonic() < heard
                if (isinstance(failure, Misconfigured) and not may_be_new) or time.monotonic() > deadline:
                    raise failure from None
                seconds *= 2
                time.sleep(0.1)

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Turn an error inside into ``Misconfigured`` or ``SinkUnavailable``; only for code that writes no rows."""
        try:
            yield
        except (kafka().KafkaException, TimeoutError) as error:
            raise self.failure(error, doing) from None

    def failure(self, error: BaseException, doing: str) -> EpochalError:
        """Return ``Misconfigured`` or ``SinkUnavailable`` for a failed request that is known to have had no effect."""
        cause = error.args[0] if error.args and isinstance(error.args[0], kafka().KafkaError) else None
        text = self.scrub(cause.str() if cause is not None else f"{type(error).__name__}: {error}")
        if cause is not None and is_refused(cause):
            return Misconfigured(
                f"Kafka refuses the request {doing}: {text}",
                sink=self.sink,
                state=f"bootstrap servers {self.bootstrap}, error {cause.name()}",
                help="correct what Kafka names: the user's rights (ACLs), a topic's setting, or options= of KafkaSink",
            )
        heard = f", last heard: {self.scrub(self.heard[-1])}" if self.heard else ""
        return SinkUnavailable(
            f"Kafka at {self.bootstrap} did not answer the request {doing} within {self.timeout:g} s: {text}",
            sink=self.sink,
            state=f"bootstrap servers {self.bootstrap}{heard}",
            help="start the brokers, or make them reachable from here under the addresses that they advertise"
            " (advertised.listeners); if they are up and slow, raise request_timeout=",
        )

    def scrub(self, text: str) -> str:
        """Return ``text`` without the value of any option that may be a secret."""
        for name, value in self.options.items():
            if _SECRET.search(name) and str(value):
                text = text.replace(str(value), "***")
        return text

    def deadline(self) -> float:
        """Return the value of ``time.monotonic`` from which a request that starts now is overdue."""
        return time.monotonic() + self.timeout

    def _common(self) -> Options:
        return {"bootstrap.servers": self.bootstrap, "error_cb": self._hear, "logger": log}

    def _shared(self) -> Options:
        return {name: value for name, value in self.options.items() if _SHARED.fullmatch(name)}

    def _hear(self, error: KafkaError) -> None:
        self.heard[:] = [error.str()]

    def _make(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except (kafka().KafkaException, TypeError, ValueError) as error:
            raise Misconfigured(
                f"librdkafka does not take these options: {self.scrub(str(error))}",
                sink=self.sink,
                state=f"options {sorted(self.options)}",
                help="see librdkafka's CONFIGURATION.md for names and values",
            ) from None


def read_options(given: Options | Callable[[], Options] | None, sink: str) -> Options:
    """Return the options that were passed, or those that the user's function returns now.

    What the function raises may hold a secret, so the error does not show its text, only a key that is missing.
    """
    if not callable(given):
        return dict(given or {})
    try:
        return dict(given())
    except Exception as error:
        missing = f" {error}" if isinstance(error, KeyError) else ""
        raise Misconfigured(
            f"the function of options= raised {type(error).__name__}{missing}",
            sink=sink,
            help="it is called in the driver whenever Kafka is reached, and returns librdkafka's options: see that"
            " what it reads (the environment, a file, a vault) is there",
        ) from None


def check_options(options: Options, sink: str) -> None:
    """Raise ``Misconfigured`` for options that the promise rests on; the fixed ones may be repeated as they are."""
    taken = {name: why for name, why in sorted(OURS.items()) if name in options and not _repeats(name, options[name])}
    if taken:
        raise Misconfigured(
            f"the options {list(taken)} are not for the user to set: "
            + "; ".join(f"{name} {why}" for name, why in taken.items()),
            sink=sink,
            state=f"options {sorted(options)}",
            help="leave them out; transaction_timeout=, partitioner= and bootstrap_servers are arguments of KafkaSink."
            " Compression, lingering, TLS, SASL and the others of librdkafka are yours",
        )


def _repeats(name: str, value: object) -> bool:
    """Whether an option says what is so in any case, as a configuration that is shared with other clients may."""
    if name not in GUARANTEED:
        return False
    try:
        GUARANTEED[name](name, value)
    except NotByHand:
        return False
    return True
