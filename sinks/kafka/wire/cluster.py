"""A cluster as one process sees it: its brokers, who leads which partition, who coordinates which transaction.

Every request ends at a deadline, a value of ``time.monotonic``.  Until then what may be repeated is repeated: after a
connection that failed, and after an answer that says that somebody else has to be asked.  Requests to a coordinator
may all be repeated: all but InitProducerId do not change what they did before.
"""

from __future__ import annotations

import math
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from epochal.sinks.kafka.wire import messages
from epochal.sinks.kafka.wire.connection import Connection
from epochal.sinks.kafka.wire.errors import (
    CONCURRENT_TRANSACTIONS,
    LEADER_NOT_AVAILABLE,
    OPERATION_NOT_ATTEMPTED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerError,
    PartitionGone,
    is_moved,
    is_retriable_at_coordinator,
    name_of,
)
from epochal.sinks.kafka.wire.messages import (
    Address,
    Partition,
    Piece,
    Producer,
    ProducersAnswer,
    ProducerState,
    Request,
    TransactionState,
)
from epochal.sinks.kafka.wire.pauses import Backoff, Pauses
from epochal.sinks.kafka.wire.primitives import Reader
from epochal.sinks.kafka.wire.reach import Reach

T = TypeVar("T")

SOON = Backoff(0.002, 0.2)
"""Pauses while a transaction ends: its markers take some milliseconds."""

A_LOOK_S = 1.0
"""Seconds in which another broker has to take a connection while one that is doubted would answer."""

GONE_S = 15.0
"""How many seconds all brokers that are asked must not know a partition, until it counts as deleted.  A broker may take
some seconds to hear of a new topic."""

PRODUCE_OF_VERIFYING = 10
"""Brokers that take this version of Produce, from Kafka 3.7 on, check that a row belongs to an open transaction."""


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A request that any broker can answer for itself, and how its answer is read."""

    request: Request
    body: bytes
    read: Callable[[Reader], T]


_VERSIONS = Asked(messages.API_VERSIONS, messages.api_versions(), messages.read_api_versions)
_LISTED = Asked(messages.LIST_TRANSACTIONS, messages.list_transactions(), messages.read_list_transactions)


class Cluster:
    """Connections to the brokers of one cluster.  It belongs to one process and one thread."""

    def __init__(self, reach: Reach) -> None:
        """Nothing is sent yet."""
        self._reach = reach
        self._context: ssl.SSLContext | None = None
        self._brokers: dict[int, Address] = {}
        self._connections: dict[int, Connection] = {}
        self._spare: dict[Address, Connection] = {}  # to brokers whose ids are not known
        self._leaders: dict[Partition, int] = {}
        self._coordinators: dict[str, int] = {}
        self._asked: Address | None = None  # the broker that was asked last who leads or coordinates
        self._doubted: Address | None = None  # and one whose answer turned out not to be so, or not yet

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections.  They are made anew when they are needed."""
        for connection in (*self._connections.values(), *self._spare.values()):
            connection.close()
        self._connections.clear()
        self._spare.clear()

    # --- limits --------------------------------------------------------------------------------------------

    @property
    def replicas_ms(self) -> int:
        """How many milliseconds a leader may wait for its replicas before it answers a produce request."""
        return self._reach.request_timeout_ms

    @property
    def answer_s(self) -> float:
        """How many seconds to wait for the answer to a produce request before its connection is taken for dead."""
        replicas_s = self.replicas_ms / 1000
        return replicas_s + max(replicas_s, self._reach.attempt_s)

    # --- what brokers can do -------------------------------------------------------------------------------

    def lacking(self, deadline: float) -> list[str]:
        """Return, in words, which requests of a vote some broker does not take; nothing if all brokers take all.

        Every broker that can be reached is asked, because each may have another version (while it is upgraded).
        """
        found: dict[str, list[int]] = {}
        for node, answer in self._ask_each(_VERSIONS, deadline).items():
            if answer.error:
                raise BrokerError(answer.error, f"{messages.API_VERSIONS.name} of broker {node}")
            for words in _lacks(answer.versions):
                found.setdefault(words, []).append(node)
        return [f"broker {', '.join(map(str, nodes))} {words}" for words, nodes in found.items()]

    # --- leaders and connections ---------------------------------------------------------------------------

    def leaders(self, partitions: Iterable[Partition], deadline: float) -> Mapping[Partition, int]:
        """Return the id of the broker that leads each partition; wait until all have one.

        Brokers are asked only for what is not known.  No topic is made by asking.  After the deadline, raise
        ``BrokerError`` for one partition without a leader; ``PartitionGone``, maybe earlier, if nobody knows it.
        """
        wanted = list(partitions)
        pauses = Pauses(deadline)
        gone_at = math.inf
        refused: BrokerError | None = None
        while unknown := [each for each in wanted if each not in self._leaders]:
            try:
                refused = self._learn(unknown, deadline)
            except OSError as error:
                raise refused or error from None
            if refused is None:
                continue
            self._doubted = self._asked
            is_unknown = refused.code == UNKNOWN_TOPIC_OR_PARTITION
            gone_at = min(gone_at, time.monotonic() + GONE_S) if is_unknown else math.inf
            if is_unknown and time.monotonic() >= gone_at:
                raise PartitionGone(refused.code, refused.what)
            if not is_moved(refused.code) or not pauses.pause(self._reach.retry):
                raise refused
        return {each: self._leaders[each] for each in wanted}

    def forget_leaders(self) -> None:
        """Ask for all leaders again, when they are needed next; and another broker than the last, if there is one."""
        self._leaders.clear()
        self._doubted = self._asked

    def connection(self, node: int, deadline: float) -> Connection:
        """Return the connection to a broker; make it if there is none.  One attempt is made."""
        connection = self._connections.get(node)
        if connection is not None and connection.is_open:
            return connection
        if node not in self._brokers:
            self._metadata((), deadline)
            if node not in self._brokers:
                raise ConnectionError(f"no broker has the id {node} now")
            if node in self._connections:
                return self._connections[node]
        made = self._connect(self._brokers[node], deadline)
        self._connections[node] = made
        return made

    def drop(self, node: int) -> None:
        """Close the connection to a broker; the next use makes a new one."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()

    # --- transactions --------------------------------------------------------------------------------------

    def init_producer(self, transactional_id: str, timeout_ms: int, deadline: float) -> Producer:
        """Make a new producer of this transactional id; every older one is fenced from now on.

        An open transaction of an older one is aborted first.  It is safe to repeat: a repeat after a lost answer makes
        one epoch more, and the one before is fenced unseen.  It is not idempotent: each call that succeeds fences what
        earlier calls returned.
        """
        answer = self._ask_coordinator(
            transactional_id,
            messages.INIT_PRODUCER_ID,
            messages.init_producer_id(transactional_id, timeout_ms),
            messages.read_init_producer_id,
            lambda answer: answer.error,
            deadline,
        )
        if answer.error:
            raise BrokerError(answer.error, f"InitProducerId of {transactional_id!r}")
        return answer.producer

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[Partition], deadline: float
    ) -> None:
        """Add partitions to the transaction of this producer; the first ones begin it.

        Raise ``BrokerError`` with the code of the first partition that was refused.  A partition that the coordinator
        does not know is asked for again until the deadline: it may be new.  A repeat changes nothing.
        """
        wanted = list(partitions)
        errors = self._ask_coordinator(
            transactional_id,
            messages.ADD_PARTITIONS_TO_TXN,
            messages.add_partitions_to_txn(transactional_id, producer, wanted),
            messages.read_add_partitions_to_txn,
            lambda errors: _worst(errors)[1],
            deadline,
            retriable=lambda code: is_retriable_at_coordinator(code) or code == UNKNOWN_TOPIC_OR_PARTITION,
        )
        refused, code = _worst(errors)
        if code:
            raise BrokerError(code, f"AddPartitionsToTxn of {transactional_id!r}, {refused.topic}[{refused.partition}]")

    def end_transaction(self, transactional_id: str, producer: Producer, deadline: float, commit: bool = True) -> int:
        """End the transaction of this producer; return the error code, 0 for none.

        CONCURRENT_TRANSACTIONS (51) says that the end was begun before: it is asked again until it is done.  So the
        code that is returned is final.  Raise ``OSError`` if no final answer came before the deadline, and
        ``AnswerNotUnderstood`` for one that makes no sense: it is then not known whether the transaction has ended.
        A repeat changes nothing.
        """
        what = f"EndTxn of {transactional_id!r}"
        try:
            code = self._ask_coordinator(
                transactional_id,
                messages.END_TXN,
                messages.end_txn(transactional_id, producer, commit=commit),
                messages.read_end_txn,
                lambda code: code,
                deadline,
            )
        except BrokerError as error:  # not of this request: the coordinator was not found, or did not let us in
            raise ConnectionError(f"{what}: {error}") from error
        if is_retriable_at_coordinator(code):
            raise TimeoutError(f"{what} was last answered with {name_of(code)}")
        return code

    def describe_transaction(self, transactional_id: str, deadline: float) -> TransactionState:
        """Return what the coordinator knows of a transactional id; an error that is final is in the answer."""
        found = self._ask_coordinator(
            transactional_id,
            messages.DESCRIBE_TRANSACTIONS,
            messages.describe_transactions([transactional_id]),
            messages.read_describe_transactions,
            lambda states: states[transactional_id].error if transactional_id in states else 0,
            deadline,
        )
        if transactional_id not in found:
            raise BrokerError(-1, f"DescribeTransactions: the answer does not have {transactional_id!r}")
        state = found[transactional_id]
        if is_retriable_at_coordinator(state.error):
            raise BrokerError(state.error, f"DescribeTransactions of {transactional_id!r}")
        return state

    def transactional_ids(self, deadline: float) -> Mapping[str, str]:
        """Return every transactional id that the brokers know, with the state of its newest transaction.

        Each broker tells those that it coordinates.  All are asked again until all have answered.
        """
        pauses = Pauses(deadline)
        while True:
            try:
                answers = self._ask_each(_LISTED, deadline, must=True)
                loading = {node: answer.error for node, answer in answers.items() if answer.error}
                if not loading:
                    return {name: state for answer in answers.values() for name, state in answer.states.items()}
                node, code = next(iter(loading.items()))
                failure: Exception = BrokerError(code, f"{messages.LIST_TRANSACTIONS.name} of broker {node}")
                may_change = is_retriable_at_coordinator(code)
            except OSError as error:
                self._not_to_repeat(error)
                failure, may_change = error, True
            if not may_change or not pauses.pause(self._reach.retry):
                raise failure

    def producers(
        self, partitions: Iterable[Partition], deadline: float
    ) -> Mapping[Partition, Mapping[int, ProducerState]]:
        """Return what the leader of each partition knows of its producers, by their ids.

        No answer may be due on a leader's connection.  After the deadline, raise what went wrong last.
        """
        found: dict[Partition, Mapping[int, ProducerState]] = {}
        wanted = set(partitions)
        pauses = Pauses(deadline)
        failure: Exception | None = None
        while missing := sorted(wanted - found.keys()):
            try:
                leaders = self.leaders(missing, deadline)
            except OSError as error:
                raise failure or error from None
            failure = None
            for node in sorted(set(leaders.values())):
                led = [each for each in missing if leaders[each] == node]
                failure = self._producers_at(node, led, found, deadline) or failure
            if failure is not None and not pauses.pause(self._reach.retry):
                raise failure
        return found

    # --- inside --------------------------------------------------------------------------------------------

    def _producers_at(
        self, node: int, led: list[Partition], found: dict[Partition, Mapping[int, ProducerState]], deadline: float
    ) -> Exception | None:
        """Ask one leader; put into ``found`` what it knows.  Return why some are missing."""
        failure: Exception | None = None
        try:
            connection = self.connection(node, self._attempt(deadline))
            body = messages.describe_producers(led)
            answers = messages.read_describe_producers(
                self._call(connection, messages.DESCRIBE_PRODUCERS, body, deadline)
            )
        except OSError as error:
            self._not_to_repeat(error)
            self.drop(node)
            answers, failure = [], error
        told = {answer.partition: answer for answer in answers}
        for partition in led:
            answer = told.get(partition)
            if answer is not None and not answer.error:
                found[partition] = answer.producers
                continue
            self._leaders.pop(partition, None)
            self._doubted = self._asked
            failure = failure or _not_told(partition, answer)
        if isinstance(failure, BrokerError) and not is_moved(failure.code):
            raise failure
        return failure

    def _learn(self, unknown: Iterable[Partition], deadline: float) -> BrokerError | None:
        """Ask who leads these partitions; return why one of them has no leader."""
        wanted = messages.by_topic(unknown)
        answer = self._metadata(tuple(wanted), deadline)
        told = {topic.topic: topic for topic in answer.topics}
        refused = None
        for topic, numbers in wanted.items():
            for number in numbers:
                code, leader = _leader(told.get(topic), number)
                if leader >= 0:
                    self._leaders[Partition(topic, number)] = leader
                elif refused is None or is_moved(refused.code):
                    refused = BrokerError(code, f"{topic}[{number}] has no leader")
        return refused

    def _metadata(self, topics: tuple[str, ...], deadline: float) -> messages.MetadataAnswer:
        answer = self._ask_any(messages.METADATA, messages.metadata(topics), messages.read_metadata, deadline)
        for node, address in answer.brokers.items():
            self._meet(node, address)
        return answer

    def _meet(self, node: int, address: Address) -> None:
        """Note where a broker is.  A connection to that address is the connection to it."""
        if self._brokers.get(node) != address:
            self.drop(node)
            self._brokers[node] = address
        if node not in self._connections and address in self._spare:
            self._connections[node] = self._spare.pop(address)

    def _ask_any(self, request: Request, body: bytes, read: Callable[[Reader], T], deadline: float) -> T:
        """Ask one broker, whichever answers."""
        pauses = Pauses(deadline)
        while True:
            try:
                return read(self._call(self._any(deadline), request, body, deadline))
            except OSError as error:
                self._not_to_repeat(error)
                if not pauses.pause(self._reach.reconnect):
                    raise

    def _ask_each(self, asked: Asked[T], deadline: float, *, must: bool = False) -> Mapping[int, T]:
        """Ask every broker of the cluster once; return the answers by the brokers' ids.

        A broker that does not answer is left out, unless none does.  ``must``: all have to answer.
        """
        answers: dict[int, T] = {}
        failure: OSError | None = None
        for node in self._metadata((), deadline).brokers:
            try:
                connection = self.connection(node, self._attempt(deadline))
                answers[node] = asked.read(self._call(connection, asked.request, asked.body, deadline))
            except OSError as error:
                self._not_to_repeat(error)
                self.drop(node)
                failure = error
        if failure is not None and (must or not answers):
            raise failure
        return answers

    def _any(self, deadline: float) -> Connection:
        """Return a connection on which no answer is due, if possible not to the broker that is doubted.

        A broker that has lost touch with the others goes on telling who led and coordinated before.
        """
        self._sweep()
        idle = [each for each in (*self._connections.values(), *self._spare.values()) if not each.in_flight]
        trusted = [each for each in idle if each.address != self._doubted]
        connection = random.choice(trusted) if trusted else self._another(idle, deadline)
        self._asked = connection.address
        return connection

    def _another(self, idle: list[Connection], deadline: float) -> Connection:
        """Return a new connection to whichever broker takes it, or one of these: there is nothing better."""
        failure: OSError = ConnectionError("no broker is known")
        known = {*self._reach.bootstrap, *self._brokers.values()} - {each.address for each in idle}
        until = min(deadline, time.monotonic() + A_LOOK_S) if idle else deadline
        for address in random.sample(sorted(known), len(known)):
            try:
                made = self._connect(address, self._attempt(until))
            except OSError as error:
                self._not_to_repeat(error)
                failure = error
                continue
            self._spare[address] = made
            return made
        if idle:
            return random.choice(idle)
        raise failure

    def _sweep(self) -> None:
        """Forget connections that were closed after an error."""
        self._connections = {node: each for node, each in self._connections.items() if each.is_open}
        self._spare = {address: each for address, each in self._spare.items() if each.is_open}

    def _ask_coordinator(
        self,
        transactional_id: str,
        request: Request,
        body: bytes,
        read: Callable[[Reader], T],
        code_of: Callable[[T], int],
        deadline: float,
        *,
        retriable: Callable[[int], bool] = is_retriable_at_coordinator,
    ) -> T:
        """Ask the coordinator until it gives an answer that is not to be repeated, or until the deadline.

        After the deadline, return the last answer, or raise what went wrong if there was none.  What a broker has said
        is raised rather than the time-out of an attempt for which little time was left.
        """
        pauses = Pauses(deadline)
        last: list[T] = []
        said: BrokerError | None = None
        while True:
            backoff = self._reach.retry
            try:
                connection = self._coordinator(transactional_id, deadline)
                last[:] = [read(self._call(connection, request, body, deadline))]
                code = code_of(last[0])
                if not retriable(code):
                    return last[0]
                if code == CONCURRENT_TRANSACTIONS:
                    backoff = SOON
                else:
                    self._forget_coordinator(transactional_id)
                if not pauses.pause(backoff):
                    return last[0]
            except OSError as error:
                self._not_to_repeat(error)
                self._forget_coordinator(transactional_id)
                if not pauses.pause(self._reach.reconnect):
                    if last:
                        return last[0]
                    raise (said if said is not None and isinstance(error, TimeoutError) else error) from error
            except BrokerError as error:
                said, self._doubted = error, self._asked
                if not is_retriable_at_coordinator(error.code) or not pauses.pause(backoff):
                    raise

    def _forget_coordinator(self, transactional_id: str) -> None:
        self._coordinators.pop(transactional_id, None)
        self._doubted = self._asked

    def _coordinator(self, transactional_id: str, deadline: float) -> Connection:
        node = self._coordinators.get(transactional_id)
        if node is None:
            request = messages.FIND_COORDINATOR
            body = messages.find_coordinator(transactional_id)
            answer = self._ask_any(request, body, messages.read_find_coordinator, deadline)
            if answer.error:
                raise BrokerError(answer.error, f"{request.name} of {transactional_id!r}: {answer.message}")
            node = answer.node
            self._meet(node, answer.address)
            self._coordinators[transactional_id] = node
        return self.connection(node, self._attempt(deadline))

    def _call(self, connection: Connection, request: Request, body: Piece, deadline: float) -> Reader:
        return connection.call(
            request.api, request.version, body, flexible=request.flexible, deadline=self._attempt(deadline)
        )

    def _connect(self, address: Address, deadline: float) -> Connection:
        if self._reach.tls is not None and self._context is None:
            self._context = self._reach.tls.context()
        return Connection(address.host, address.port, self._reach, deadline=deadline, context=self._context)

    def _attempt(self, deadline: float) -> float:
        """Return when one attempt ends."""
        return min(deadline, time.monotonic() + self._reach.attempt_s)

    def _not_to_repeat(self, error: OSError) -> None:
        """Raise an error that would come again: a certificate that is not trusted, a file that cannot be read."""
        if isinstance(error, ssl.SSLCertVerificationError) or (self._reach.tls is not None and self._context is None):
            raise error


def _lacks(versions: Mapping[int, tuple[int, int]]) -> list[str]:
    """Return, in words, which requests of a vote a broker with these versions does not take."""
    found = [words for request in messages.OF_A_VOTE if (words := _lack(request, versions)) is not None]
    if versions.get(messages.PRODUCE.api, (0, 0))[1] < PRODUCE_OF_VERIFYING:
        found.append(
            "is older than Kafka 3.7: it may take rows of a transaction that has ended"
            f" (Produce {PRODUCE_OF_VERIFYING} is not among its versions)"
        )
    return found


def _lack(request: Request, versions: Mapping[int, tuple[int, int]]) -> str | None:
    known = versions.get(request.api)
    if known is None:
        return f"does not know the request {request.name}"
    if known[0] <= request.version <= known[1]:
        return None
    return f"takes {request.name} in versions {known[0]} to {known[1]}, and {request.version} is needed"


def _worst(errors: Mapping[Partition, int]) -> tuple[Partition, int]:
    """Return the partition that was refused, and why.  All others are then told that nothing was attempted for them."""
    refused = [(partition, code) for partition, code in errors.items() if code]
    blamed = [each for each in refused if each[1] != OPERATION_NOT_ATTEMPTED]
    return next(iter(blamed or refused), (Partition("", -1), 0))


def _leader(topic: messages.TopicAnswer | None, number: int) -> tuple[int, int]:
    """Return an error code and a leader, -1 if there is none."""
    if topic is None:
        return UNKNOWN_TOPIC_OR_PARTITION, -1
    told = topic.partitions.get(number)
    if told is None:
        return topic.error or UNKNOWN_TOPIC_OR_PARTITION, -1
    return told.error or LEADER_NOT_AVAILABLE, told.leader


def _not_told(partition: Partition, answer: ProducersAnswer | None) -> BrokerError:
    code = UNKNOWN_TOPIC_OR_PARTITION if answer is None else answer.error
    told = f": {answer.message}" if answer is not None and answer.message else ""
    return BrokerError(code, f"DescribeProducers of {partition.topic}[{partition.partition}]{told}")
