"""Whatever numbers a worker tells of itself, the operator reads them or says which one cannot be."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given
from hypothesis import strategies as st

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.act.worker_status import parse_worker
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.planner import plan
from dormouse_operator.decide.status import build_status
from dormouse_operator.errors import WorkerRefused
from dormouse_operator.model import Lifecycle, WorkerState
from dormouse_operator.testing.nouns import REVISION, a_deployment, a_situation

ODD_FLOATS = [float("nan"), float("inf"), float("-inf"), -1.0, 1e300, -1e300, 253_402_300_800.0]
NUMBERS = {
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from([*ODD_FLOATS, 0.0, 5e-324, 253_402_300_799.0]) | st.floats(),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from([0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 10) | st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=8),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


@st.composite
def messages(draw, kind):
    """Return a message with any numbers in any of its fields. The operator reads no map and no list of words."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        inner = field.message_type
        if field.name == "ranks":
            message.ranks.extend(draw(st.lists(messages(pb.RankStatus), max_size=3)))
        elif field.is_repeated or not draw(st.booleans()):
            continue
        elif inner:
            getattr(message, field.name).CopyFrom(draw(messages(getattr(pb, inner.name))))
        else:
            setattr(message, field.name, draw(NUMBERS[field.cpp_type]))
    return message


def status_with(**fields):
    return pb.WorkerStatus(settings_digest=REVISION, last_engine_failure=pb.Failure(reason="Lost"), **fields)


@given(status=messages(pb.WorkerStatus), order=st.sampled_from(["Auto", "Asleep"]))
@example(status=status_with(last_engine_failure_unix_seconds=1e300), order="Auto")
@example(status=status_with(last_engine_failure_unix_seconds=float("nan")), order="Auto")
@example(status=status_with(state=pb.WORKER_STATE_READY, last_wake_seconds=float("nan")), order="Auto")
@example(status=status_with(state=pb.WORKER_STATE_ASLEEP, residual_bytes=2**64 - 1), order="Asleep")
def test_no_numbers_of_a_worker_end_in_an_exception(status, order):
    try:
        worker = parse_worker(status)
    except WorkerRefused:
        return  # in words: see below
    seen = a_situation(worker, deployment=a_deployment(lifecycle=Lifecycle(order, 60)))
    found = find(seen)
    written = build_status(seen, found, evaluate_all(seen, found), url="")
    json.dumps(written, allow_nan=False)
    plan(seen, found)


@pytest.mark.parametrize("value", ODD_FLOATS)
@pytest.mark.parametrize(
    "name", ["last_engine_failure_unix_seconds", "last_sleep_seconds", "last_wake_seconds", "report.seconds"]
)
def test_seconds_that_can_not_be_are_named(name, value):
    outer, _, inner = name.partition(".")
    fields = {outer: pb.MemoryReport(**{inner: value}) if inner else value}
    with pytest.raises(WorkerRefused) as refused:
        parse_worker(status_with(**fields))
    assert f"{name} is {value}; possible are 0 to" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("state", {"state": 11}),
        ("sleep_level", {"sleep_level": 2**31}),
        ("residual_bytes", {"residual_bytes": 2**63}),
        ("request_counter", {"request_counter": 2**64 - 1}),
        ("report.block_size", {"report": pb.MemoryReport(block_size=2**31)}),
        (
            "ranks.report.num_gpu_blocks",
            {"ranks": [pb.RankStatus(), pb.RankStatus(report=pb.MemoryReport(num_gpu_blocks=2**63))]},
        ),
    ],
)
def test_a_number_that_no_status_has_room_for_is_named(name, fields):
    with pytest.raises(WorkerRefused, match=rf"{name} is \d+; possible are 0 to \d+"):
        parse_worker(status_with(**fields))


def test_an_epoch_is_read_whatever_it_is():
    assert parse_worker(status_with(epoch=2**64 - 1)).epoch == 2**64 - 1, "who says it is named and replaced"


def test_usual_numbers_are_read():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    told = status_with(state=pb.WORKER_STATE_READY, last_engine_failure_unix_seconds=at.timestamp(), engine_failures=1)
    worker = parse_worker(told)
    assert (worker.state, worker.engine_failed, worker.engine_failures) == (WorkerState.READY, at, 1)
