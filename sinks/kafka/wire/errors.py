"""What goes wrong between a client and brokers: an error code, an answer that makes no sense, an option.

The tables of codes hold for librdkafka's errors, too (``client.py``): its codes of brokers are Kafka's.

A connection that fails raises ``OSError``, as Python's sockets do: ``ConnectionError``, ``TimeoutError`` and
``ssl.SSLError`` are kinds of it.
"""

from __future__ import annotations

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
CONCURRENT_TRANSACTIONS = 51
OPERATION_NOT_ATTEMPTED = 55
SASL_AUTHENTICATION_FAILED = 58
TRANSACTIONAL_ID_NOT_FOUND = 105

NAMES = {
    -1: "UNKNOWN_SERVER_ERROR",
    0: "NONE",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    4: "INVALID_FETCH_SIZE",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    9: "REPLICA_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    21: "INVALID_REQUIRED_ACKS",
    29: "TOPIC_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    32: "INVALID_TIMESTAMP",
    33: "UNSUPPORTED_SASL_MECHANISM",
    34: "ILLEGAL_SASL_STATE",
    35: "UNSUPPORTED_VERSION",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
    41: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    44: "POLICY_VIOLATION",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    52: "TRANSACTION_COORDINATOR_FENCED",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    54: "SECURITY_DISABLED",
    55: "OPERATION_NOT_ATTEMPTED",
    56: "KAFKA_STORAGE_ERROR",
    58: "SASL_AUTHENTICATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    65: "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    72: "LISTENER_NOT_FOUND",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    76: "UNSUPPORTED_COMPRESSION_TYPE",
    78: "OFFSET_NOT_AVAILABLE",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
    90: "PRODUCER_FENCED",
    97: "PRINCIPAL_DESERIALIZATION_FAILURE",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
    109: "OFFSET_MOVED_TO_TIERED_STORAGE",
    120: "TRANSACTION_ABORTABLE",
}
"""Kafka's names of the codes that answers to our requests can have."""

_RETRIABLE_AT_COORDINATOR = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
_MOVED = frozenset({UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, 6, 7, 9, 13, 19, 20, 56, 72})
_FENCED = frozenset({INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, 49, 59, 90, 120})
_REFUSED = frozenset(
    {
        *(4, 10, 18, 32, 43, 76, 87),  # the records: size, timestamp, format, codec
        *(17, 37, 38, 40, 44),  # a topic: name, partitions, replicas, settings, what the brokers' policy allows
        *(29, 31, 53),  # rights
        *(33, 34, 54, SASL_AUTHENTICATION_FAILED),  # who we are
        *(21, 35, 42, 50),  # the request: acks, version, content, the timeout of the transaction
    }
)


def name_of(code: int) -> str:
    """Return Kafka's name of an error code, or the number."""
    return NAMES.get(code, str(code))


def is_retriable_at_coordinator(code: int) -> bool:
    """Whether the coordinator, or the broker that is the coordinator now, will soon answer otherwise."""
    return code in _RETRIABLE_AT_COORDINATOR


def is_moved(code: int) -> bool:
    """Whether a request to a leader may be repeated, once the leader was asked for again.

    These are the answers to Produce, Metadata and DescribeProducers that Kafka itself calls retriable: the leader is
    another broker, is not known, or has not enough replicas now, or the broker does not know the topic yet.
    NOT_ENOUGH_REPLICAS (19) is also the answer to a producer whose transaction the broker could not verify.
    BROKER_NOT_AVAILABLE (8) is not among them: brokers send it to each other only.
    """
    return code in _MOVED


def is_fenced(code: int) -> bool:
    """Whether this producer id and epoch can write no more, while a new epoch may."""
    return code in _FENCED


def is_refused(code: int) -> bool:
    """Whether the broker would refuse the same request again, until a person changes something.

    CORRUPT_MESSAGE (2) is not among these: Kafka calls it retriable, as bytes may have changed on their way.
    """
    return code in _REFUSED


class BrokerError(Exception):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.code = code
        self.name = name_of(code)
        self.what = what

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


class PartitionGone(BrokerError):
    """No broker has known a partition for so long that it was deleted."""


class AnswerNotUnderstood(Exception):
    """An answer of a broker does not have the form that its request's version has."""

    SHOWN = 32
    """How many bytes of the answer the message shows."""

    def __init__(self, what: str, data: bytes = b"", api: int = -1, version: int = -1) -> None:
        self.what = what
        self.data = bytes(data[: self.SHOWN])
        self.api = api
        self.version = version
        super().__init__(what, self.data, api, version)

    def __str__(self) -> str:
        return f"{self.what} (API {self.api}, version {self.version}, the answer begins with {self.data.hex() or '-'})"


class NotByHand(Exception):
    """An option, or a value of it, that only librdkafka has."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(option, why)
        self.option = option
        self.why = why

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.why}"
