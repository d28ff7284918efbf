"""Each request and each answer, compared with kafka-python's classes, which are made of Kafka's own schemas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import transactions as admin
from kafka.protocol.metadata import api_versions, find_coordinator, metadata
from kafka.protocol.producer import produce as producing
from kafka.protocol.producer import transaction as txn
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from epochal.sinks.kafka.wire import messages as m
from epochal.sinks.kafka.wire.messages import Address, Partition, Producer
from epochal.sinks.kafka.wire.primitives import Reader

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WORDS = st.none() | NAMES
BYTES = st.binary(max_size=300)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PRODUCERS = st.builds(Producer, INT64, INT16)
PARTITIONS = st.lists(st.builds(Partition, NAMES, INT32), unique=True, max_size=8)


def encoded(message: Any, version: int) -> bytes:
    return bytes(message.encode(version=version))


def reader(message: Any, version: int) -> Reader:
    return Reader(encoded(message, version))


def grouped(partitions: list[Partition]) -> list[tuple[str, list[int]]]:
    return list(m.by_topic(partitions).items())


# --- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", m.REQUESTS, ids=lambda request: request.name)
def test_the_versions_are_those_of_the_first_transaction_protocol(request_: m.Request) -> None:
    highest = {"Produce": 11, "AddPartitionsToTxn": 3, "EndTxn": 4}
    assert request_.version <= highest.get(request_.name, 99)


def test_the_requests_are_those_that_kafka_knows_by_these_numbers() -> None:
    classes = {
        m.PRODUCE: producing.ProduceRequest,
        m.METADATA: metadata.MetadataRequest,
        m.FIND_COORDINATOR: find_coordinator.FindCoordinatorRequest,
        m.SASL_HANDSHAKE: SaslHandshakeRequest,
        m.API_VERSIONS: api_versions.ApiVersionsRequest,
        m.INIT_PRODUCER_ID: txn.InitProducerIdRequest,
        m.ADD_PARTITIONS_TO_TXN: txn.AddPartitionsToTxnRequest,
        m.END_TXN: txn.EndTxnRequest,
        m.SASL_AUTHENTICATE: SaslAuthenticateRequest,
        m.DESCRIBE_PRODUCERS: admin.DescribeProducersRequest,
        m.DESCRIBE_TRANSACTIONS: admin.DescribeTransactionsRequest,
        m.LIST_TRANSACTIONS: admin.ListTransactionsRequest,
    }
    assert set(classes) == set(m.REQUESTS)
    for request, known in classes.items():
        assert (known.API_KEY, known.flexible_version_q(request.version)) == (request.api, request.flexible)
        assert known.name == f"{request.name}Request"


def test_api_versions_are_asked_for_without_a_body() -> None:
    assert m.api_versions() == encoded(api_versions.ApiVersionsRequest(), 0)


@given(st.lists(NAMES, max_size=5))
def test_metadata_is_asked_for_without_making_a_topic(topics: list[str]) -> None:
    topic = metadata.MetadataRequest.MetadataRequestTopic
    wanted = metadata.MetadataRequest(topics=[topic(name=name) for name in topics], allow_auto_topic_creation=False)
    assert m.metadata(topics) == encoded(wanted, 7)


@given(NAMES)
def test_the_coordinator_of_a_transaction_is_asked_for(name: str) -> None:
    assert m.find_coordinator(name) == encoded(find_coordinator.FindCoordinatorRequest(key=name, key_type=1), 2)


@given(NAMES, BYTES)
def test_who_we_are_is_said(mechanism: str, data: bytes) -> None:
    assert m.sasl_handshake(mechanism) == encoded(SaslHandshakeRequest(mechanism=mechanism), 1)
    assert m.sasl_authenticate(data) == encoded(SaslAuthenticateRequest(auth_bytes=data), 1)


@given(NAMES, INT32)
def test_a_producer_is_asked_for(name: str, timeout_ms: int) -> None:
    wanted = txn.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    assert m.init_producer_id(name, timeout_ms) == encoded(wanted, 1)


@given(NAMES, PRODUCERS, PARTITIONS)
def test_partitions_are_added(name: str, producer: Producer, partitions: list[Partition]) -> None:
    topic = txn.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    wanted = txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[topic(name=each, partitions=numbers) for each, numbers in grouped(partitions)],
    )
    assert m.add_partitions_to_txn(name, producer, partitions) == encoded(wanted, 2)


@given(NAMES, PRODUCERS, st.booleans())
def test_a_transaction_is_ended(name: str, producer: Producer, commit: bool) -> None:
    wanted = txn.EndTxnRequest(
        transactional_id=name, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
    )
    assert m.end_txn(name, producer, commit=commit) == encoded(wanted, 2)


@given(st.lists(NAMES, max_size=200))
def test_transactions_are_asked_for(names: list[str]) -> None:
    assert m.describe_transactions(names) == encoded(admin.DescribeTransactionsRequest(transactional_ids=names), 0)


@given(PARTITIONS)
def test_producers_are_asked_for(partitions: list[Partition]) -> None:
    topic = admin.DescribeProducersRequest.TopicRequest
    topics = [topic(name=name, partition_indexes=numbers) for name, numbers in grouped(partitions)]
    assert m.describe_producers(partitions) == encoded(admin.DescribeProducersRequest(topics=topics), 0)


@given(NAMES, INT32, st.dictionaries(st.builds(Partition, NAMES, INT32), st.lists(BYTES, min_size=1, max_size=4)))
def test_batches_are_handed_over_as_they_are(name: str, timeout_ms: int, batches: dict[Partition, list[bytes]]) -> None:
    topic = producing.ProduceRequest.TopicProduceData
    data = [
        topic(
            name=each,
            partition_data=[
                topic.PartitionProduceData(index=number, records=b"".join(batches[Partition(each, number)]))
                for number in numbers
            ],
        )
        for each, numbers in grouped(list(batches))
    ]
    wanted = producing.ProduceRequest(transactional_id=name, acks=-1, timeout_ms=timeout_ms, topic_data=data)
    made = m.produce(name, batches, timeout_ms)
    assert b"".join(made) == encoded(wanted, 8)
    pieces = [piece for found in batches.values() for piece in found]
    kept = {id(piece) for piece in made}
    assert all(id(piece) in kept for piece in pieces), "a piece was copied"


def test_a_batch_may_lie_in_views_of_any_kind() -> None:
    wide = memoryview(bytearray(8)).cast("i")
    made = m.produce("x", {Partition("t", 0): [wide, b"abc", bytearray(2), memoryview(b"defg")[1:]]}, 1000)
    assert bytes(made[0])[-4:] == (8 + 3 + 2 + 3).to_bytes(4, "big")
    assert made[1] is wide


# --- answers -----------------------------------------------------------------------------------------------


@given(INT16, st.dictionaries(INT16, st.tuples(INT16, INT16), max_size=20))
def test_versions_are_read(error: int, versions: dict[int, tuple[int, int]]) -> None:
    version = api_versions.ApiVersionsResponse.ApiVersion
    listed = [version(api_key=api, min_version=low, max_version=high) for api, (low, high) in versions.items()]
    sent = api_versions.ApiVersionsResponse(error_code=error, api_keys=listed)
    assert m.read_api_versions(reader(sent, 0)) == (error, versions)


LED = st.dictionaries(INT32, st.tuples(INT16, INT32), max_size=4)


@given(
    st.dictionaries(INT32, st.tuples(NAMES, INT32, WORDS), max_size=4),
    st.lists(st.tuples(INT16, NAMES, LED), max_size=4),
    st.lists(INT32, max_size=3),
)
def test_metadata_is_read(brokers: Any, topics: Any, replicas: list[int]) -> None:
    kind = metadata.MetadataResponse
    partition = kind.MetadataResponseTopic.MetadataResponsePartition

    def led(number: int, error: int, leader: int) -> Any:
        nodes = {"replica_nodes": replicas, "isr_nodes": replicas[:1], "offline_replicas": replicas[1:]}
        return partition(error_code=error, partition_index=number, leader_id=leader, leader_epoch=3, **nodes)

    sent = kind(
        throttle_time_ms=0,
        brokers=[
            kind.MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack)
            for node, (host, port, rack) in brokers.items()
        ],
        cluster_id="c",
        controller_id=1,
        topics=[
            kind.MetadataResponseTopic(
                error_code=error,
                name=name,
                is_internal=False,
                partitions=[led(number, *told) for number, told in found.items()],
            )
            for error, name, found in topics
        ],
    )
    answer = m.read_metadata(reader(sent, 7))
    assert answer.brokers == {node: Address(host, port) for node, (host, port, _) in brokers.items()}
    assert answer.topics == topics


@given(INT16, st.lists(NAMES, max_size=5), WORDS, BYTES, INT64)
def test_answers_to_who_we_are_are_read(
    error: int, mechanisms: list[str], message: str | None, data: bytes, lifetime: int
) -> None:
    sent = SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)
    assert m.read_sasl_handshake(reader(sent, 1)) == (error, mechanisms)
    fields = {"error_code": error, "error_message": message, "auth_bytes": data, "session_lifetime_ms": lifetime}
    assert m.read_sasl_authenticate(reader(SaslAuthenticateResponse(**fields), 1)) == (error, message, data)


@given(INT32, INT16, WORDS, INT32, NAMES, INT32)
def test_a_coordinator_is_read(throttle: int, error: int, message: str | None, node: int, host: str, port: int) -> None:
    fields = {"error_code": error, "error_message": message, "node_id": node, "host": host, "port": port}
    sent = find_coordinator.FindCoordinatorResponse(throttle_time_ms=throttle, **fields)
    assert m.read_find_coordinator(reader(sent, 2)) == (error, message, node, Address(host, port))


@given(INT32, INT16, PRODUCERS)
def test_a_producer_and_the_end_of_its_transaction_are_read(throttle: int, error: int, producer: Producer) -> None:
    common = {"throttle_time_ms": throttle, "error_code": error}
    sent = txn.InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch, **common)
    assert m.read_init_producer_id(reader(sent, 1)) == (error, producer)
    assert m.read_end_txn(reader(txn.EndTxnResponse(**common), 2)) == error


@given(st.dictionaries(st.builds(Partition, NAMES, INT32), INT16, max_size=8))
def test_added_partitions_are_read(errors: dict[Partition, int]) -> None:
    kind = txn.AddPartitionsToTxnResponse
    topic = kind.AddPartitionsToTxnTopicResult
    result = topic.AddPartitionsToTxnPartitionResult
    sent = kind(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            topic(
                name=name,
                results_by_partition=[
                    result(partition_index=number, partition_error_code=errors[Partition(name, number)])
                    for number in numbers
                ],
            )
            for name, numbers in grouped(list(errors))
        ],
    )
    assert m.read_add_partitions_to_txn(reader(sent, 2)) == errors


@given(st.dictionaries(NAMES, st.tuples(INT16, NAMES, INT32, INT64, PRODUCERS, PARTITIONS), max_size=3))
def test_transactions_are_read(transactions: Any) -> None:
    kind = admin.DescribeTransactionsResponse
    state = kind.TransactionState
    sent = kind(
        throttle_time_ms=0,
        transaction_states=[
            state(
                error_code=error,
                transactional_id=name,
                transaction_state=said,
                transaction_timeout_ms=timeout,
                transaction_start_time_ms=began,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                topics=[state.TopicData(topic=topic, partitions=numbers) for topic, numbers in grouped(partitions)],
            )
            for name, (error, said, timeout, began, producer, partitions) in transactions.items()
        ],
    )
    read = m.read_describe_transactions(reader(sent, 0))
    assert list(read) == list(transactions)
    for name, (error, said, timeout, began, producer, partitions) in transactions.items():
        by_topic = tuple(Partition(topic, number) for topic, numbers in grouped(partitions) for number in numbers)
        assert read[name] == m.TransactionState(error, said, producer, timeout, began, by_topic)


@given(st.dictionaries(NAMES, NAMES, max_size=3), INT16)
def test_transactional_ids_are_listed(states: dict[str, str], error: int) -> None:
    assert m.list_transactions() == encoded(admin.ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
    kind = admin.ListTransactionsResponse
    told = [
        kind.TransactionState(transactional_id=name, producer_id=7, transaction_state=state)
        for name, state in states.items()
    ]
    sent = kind(throttle_time_ms=0, error_code=error, unknown_state_filters=["x"], transaction_states=told)
    assert m.read_list_transactions(reader(sent, 0)) == m.Listed(error, states)


OFFSETS = st.tuples(INT16, INT64, st.lists(st.tuples(INT32, WORDS), max_size=2), WORDS)


@given(st.dictionaries(st.builds(Partition, NAMES, INT32), OFFSETS, max_size=5), INT32)
def test_what_became_of_batches_is_read(batches: Any, throttle: int) -> None:
    kind = producing.ProduceResponse
    topic = kind.TopicProduceResponse
    partition = topic.PartitionProduceResponse

    def outcome(name: str, number: int) -> Any:
        error, offset, records, message = batches[Partition(name, number)]
        bad = [
            partition.BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=text)
            for place, text in records
        ]
        fields = {"index": number, "error_code": error, "base_offset": offset, "log_append_time_ms": -1}
        return partition(log_start_offset=0, record_errors=bad, error_message=message, **fields)

    responses = [
        topic(name=name, partition_responses=[outcome(name, number) for number in numbers])
        for name, numbers in grouped(list(batches))
    ]
    read = m.read_produce(reader(kind(responses=responses, throttle_time_ms=throttle), 8))
    assert {answer.partition: answer[1:3] for answer in read} == {each: told[:2] for each, told in batches.items()}
    for answer in read:
        _, _, records, message = batches[answer.partition]
        assert answer.message == (message or next((text for _, text in records if text), None))


STATES = st.dictionaries(INT64, st.builds(m.ProducerState, INT32, INT32, INT64), max_size=3)


@given(st.dictionaries(st.builds(Partition, NAMES, INT32), st.tuples(INT16, WORDS, STATES), max_size=5))
def test_producers_are_read(found: Any) -> None:
    kind = admin.DescribeProducersResponse
    partition = kind.TopicResponse.PartitionResponse

    def told(name: str, number: int) -> Any:
        error, message, states = found[Partition(name, number)]
        active = [
            partition.ProducerState(
                producer_id=each,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=7,
                coordinator_epoch=8,
                current_txn_start_offset=state.first_offset,
            )
            for each, state in states.items()
        ]
        return partition(partition_index=number, error_code=error, error_message=message, active_producers=active)

    topics = [
        kind.TopicResponse(name=name, partitions=[told(name, number) for number in numbers])
        for name, numbers in grouped(list(found))
    ]
    read = m.read_describe_producers(reader(kind(throttle_time_ms=0, topics=topics), 0))
    assert {answer.partition: answer[1:] for answer in read} == found
