"""What a call's end says about its worker. Pure."""

import grpc
import pytest

from dormouse_gateway.errors import WorkerFailure, stopped, verdict_on
from dormouse_gateway.routing.breaker import Verdict
from dormouse_gateway.testing.workers import endpoint

ON_PURPOSE = (("grpc-status-details-bin", b"x"),)
OWN_FAULT = [
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
]


def verdict(code, messages, trailers=ON_PURPOSE):
    return verdict_on(WorkerFailure(endpoint("a"), code, "", trailers, messages))


def test_an_answer_is_good():
    assert verdict_on(None) is Verdict.GOOD


@pytest.mark.parametrize("messages", [0, 3])
@pytest.mark.parametrize("code", OWN_FAULT, ids=lambda code: code.name)
def test_what_the_request_brought_on_itself_says_nothing(code, messages):
    assert verdict(code, messages) is Verdict.NOTHING


@pytest.mark.parametrize(
    ("code", "trailers", "messages", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, ON_PURPOSE, 0, Verdict.REFUSED),
        (grpc.StatusCode.UNAVAILABLE, (), 0, Verdict.REFUSED),
        (grpc.StatusCode.NOT_FOUND, ON_PURPOSE, 0, Verdict.REFUSED),
        (grpc.StatusCode.INTERNAL, (), 0, Verdict.REFUSED),
        (grpc.StatusCode.INTERNAL, ON_PURPOSE, 0, Verdict.FAILED),
        (grpc.StatusCode.DATA_LOSS, (), 0, Verdict.FAILED),
        (grpc.StatusCode.UNAVAILABLE, (), 3, Verdict.FAILED),
        (grpc.StatusCode.CANCELLED, (), 3, Verdict.FAILED),
        (grpc.StatusCode.CANCELLED, ON_PURPOSE, 3, Verdict.NOTHING),
    ],
)
def test_what_a_worker_failed_in_counts_against_it(code, trailers, messages, expected):
    assert verdict(code, messages, trailers) is expected


def test_a_stream_that_was_ended_on_purpose_says_nothing_unless_nothing_was_said():
    assert verdict_on(stopped(endpoint("a"), why="it must go", messages=3)) is Verdict.NOTHING
    assert verdict_on(stopped(endpoint("a"), why="it gave the request up", messages=0)) is Verdict.REFUSED


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND])
def test_a_worker_that_lacks_an_adapter_serves_others_on(code):
    refused, broken = (WorkerFailure(endpoint("a"), code, "", trailers, 0) for trailers in (ON_PURPOSE, ()))
    assert verdict_on(refused, adapter="sql") is Verdict.NOTHING
    assert verdict_on(broken, adapter="sql") is Verdict.REFUSED
    assert verdict_on(refused) is Verdict.REFUSED
