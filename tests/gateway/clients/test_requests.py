"""What is refused before a worker is asked, and what a worker gets to see of a client's words."""

import random

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.requests import METHODS, forwarded_metadata, parse, prepare
from dormouse_gateway.clients.salts import Salts

GENERATE = METHODS[0]
TOKENIZE = METHODS[1]

REFUSED = {
    "a message over 1 MiB": (pb.GenerateRequest(model="m", text="a" * (1 << 20)), ["1048583", "1048576"]),
    "no model": (pb.GenerateRequest(text="a"), ["model is empty"]),
    "a model name that is too long": (pb.GenerateRequest(model="m" * 300), ["model", "300", "256"]),
    "resume": (pb.GenerateRequest(model="m", resume=pb.Resume()), ["resume"]),
    "remote decode": (pb.GenerateRequest(model="m", remote_decode=True), ["remote_decode"]),
    "a long request id": (pb.GenerateRequest(model="m", request_id="r" * 129), ["request_id", "129", "128"]),
    "a request id that would break a log": (pb.GenerateRequest(model="m", request_id="a\nb"), ["request_id", r"a\nb"]),
    "a request id outside of ASCII": (pb.GenerateRequest(model="m", request_id="é"), ["request_id", "é"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_invalid_argument_and_names_field_value_and_limit(case):
    request, named = REFUSED[case]
    with pytest.raises(CallError) as caught:
        parse(GENERATE, request.SerializeToString())
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [name for name in named if name not in str(caught.value)] == [], str(caught.value)


def test_bytes_that_are_no_message_are_invalid_argument():
    with pytest.raises(CallError, match=r"no dormouse\.v1\.TokenizeRequest"):
        parse(TOKENIZE, b"\xff\xff\xff")


@given(st.binary(max_size=200))
def test_whatever_bytes_come_they_are_a_request_or_a_call_error(raw):
    for method in METHODS:
        try:
            parse(method, raw)
        except CallError as error:
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017  # there is nothing else to see


def prepared(request, seed=1):
    return pb.GenerateRequest.FromString(prepare(request, model_name="m", rng=random.Random(seed)))


def test_a_missing_seed_and_request_id_are_drawn_once():
    request = pb.GenerateRequest(model="ns/m", text="a")
    first = prepared(request, seed=1)
    assert first.model == "m"
    assert first.sampling_params.HasField("seed")
    assert len(first.request_id) == 36
    assert prepared(request, seed=2) == first, "what was drawn stays"


def test_a_seed_of_zero_and_a_given_request_id_stay():
    request = pb.GenerateRequest(request_id="mine", sampling_params=pb.SamplingParams(seed=0, temperature=0.5))
    kept = prepared(request)
    assert (kept.sampling_params.seed, kept.sampling_params.temperature, kept.request_id) == (0, 0.5, "mine")


def test_other_requests_get_the_workers_name_of_the_model_and_nothing_else():
    raw = prepare(pb.TokenizeRequest(model="ns/m", text="a"), model_name="m", rng=random.Random(1))
    assert pb.TokenizeRequest.FromString(raw) == pb.TokenizeRequest(model="m", text="a")


def with_unknown_fields(request, *path):
    """Return the message's bytes with a field that its schema does not have, in itself or in a part of it."""
    part = request
    for name in path:
        part = getattr(part, name)
    part.MergeFromString(UNKNOWN)
    assert UNKNOWN in request.SerializeToString()
    return request.SerializeToString()


UNKNOWN = b"\xfa\x7f\x09smuggled!"  # field 2047: text


@pytest.mark.parametrize(
    ("method", "request_", "path"),
    [
        (GENERATE, pb.GenerateRequest(model="m", text="a"), ()),
        (
            GENERATE,
            pb.GenerateRequest(model="m", text="a", sampling_params=pb.SamplingParams(n=1)),
            ("sampling_params",),
        ),
        (GENERATE, pb.GenerateRequest(model="m", chat=pb.Chat(messages=[pb.ChatMessage(role="user")])), ("chat",)),
        (TOKENIZE, pb.TokenizeRequest(model="m", text="a"), ()),
    ],
)
def test_fields_of_a_newer_schema_do_not_pass_the_gateway(method, request_, path):
    raw = with_unknown_fields(request_, *path)
    sent = prepare(parse(method, raw), model_name="m", rng=random.Random(1))
    assert b"smuggled" not in sent
    assert method.request.FromString(sent).model == "m"


def test_workers_get_a_clients_trace_context_and_nothing_else_of_its_metadata():
    trace = (("traceparent", "00-1"), ("tracestate", "a=b"))
    given_ = (
        *trace,
        ("dormouse-ticket", "stolen"),
        ("dormouse-cache-salt", "salt"),
        ("dormouse-caller", "me"),
        ("dormouse-anything", "else"),
        ("grpc-timeout", "1S"),
        ("user-agent", "me"),
        ("authorization", "Bearer key"),
        ("cookie", "secret"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-internal-admin", "true"),
        ("trace-bin", b"\x00"),
    )
    salts = Salts("s")
    told = (("dormouse-caller", salts.alias("him")), ("dormouse-cache-salt", salts.salt(given_)))
    assert forwarded_metadata(given_, caller="him", has_role=True, salts=salts) == (*trace, *told)
    assert forwarded_metadata(given_, caller="him", has_role=False, salts=salts) == trace
    assert forwarded_metadata(None, caller="him", has_role=False, salts=salts) == ()
