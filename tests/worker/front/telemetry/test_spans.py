"""What a worker that traces says of calls: made from the times that it keeps anyway."""

from __future__ import annotations

import grpc
import pytest
from opentelemetry.trace import StatusCode

from dormouse_api.status import CallError
from dormouse_api.testing_spans import KeptSpans, parent_id, span_id
from dormouse_worker.front.requests.streams import Times
from dormouse_worker.front.telemetry.spans import Phase, phases

TRACE_ID, PARENT_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
CALLED = (("traceparent", f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"),)


class Stream:
    """As much of a stream as the phases read."""

    def __init__(self, times, *, is_started=True, is_finished=True, error=None):
        self.times = times
        self.is_started = is_started
        self.is_finished = is_finished
        self.error = error


def test_the_phases_of_a_choice_follow_each_other_from_its_arrival_to_its_last_token():
    times = Times(10.0, first_token_s=13.0, last_token_s=20.0, queue_s=1.0, prefill_s=2.0)
    assert list(phases(Stream(times), 99.0)) == [
        Phase("queue", 10.0, 11.0),
        Phase("prefill", 11.0, 13.0),
        Phase("decode", 13.0, 20.0),
    ]


def test_times_that_the_engine_measured_longer_than_there_was_are_cut_to_the_arrival():
    times = Times(10.0, first_token_s=11.0, last_token_s=11.0, queue_s=5.0, prefill_s=5.0)
    assert [(phase.start_s, phase.end_s) for phase in phases(Stream(times), 99.0)] == [(10, 10), (10, 11), (11, 11)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (Stream(Times(10.0), is_started=False, is_finished=False), [Phase("queue", 10.0, 30.0)]),
        (
            Stream(Times(10.0), is_started=False, error=CallError(grpc.StatusCode.UNAVAILABLE, "died")),
            [Phase("queue", 10.0, 30.0)],
        ),
        (Stream(Times(10.0, queue_s=4.0)), [Phase("queue", 10.0, 14.0), Phase("prefill", 14.0, 30.0)]),
        (Stream(Times(10.0), is_started=False), []),  # resumed, and had ended
    ],
)
def test_a_choice_that_got_no_token_has_the_phases_that_it_reached(stream, expected):
    assert list(phases(stream, 30.0)) == expected


@pytest.fixture
def spans():
    return KeptSpans()


async def test_a_call_continues_the_gateways_trace_with_its_phases_as_children(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        await house.collect("hello", max_tokens=5, metadata=CALLED)
    span = spans.one("generate")
    assert (span.context.trace_id, parent_id(span)) == (TRACE_ID, PARENT_ID)
    parts = [spans.one(name) for name in ("queue", "prefill", "decode")]
    assert {parent_id(part) for part in parts} == {span_id(span)}
    assert len(spans.all()) == 4
    assert parts[0].end_time == parts[1].start_time
    assert parts[1].end_time == parts[2].start_time
    assert span.start_time <= parts[0].start_time
    assert parts[2].end_time <= span.end_time
    assert span.attributes["gen_ai.usage.input_tokens"] == span.attributes["gen_ai.usage.output_tokens"] == 5
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert span.status.status_code is StatusCode.UNSET


async def test_each_choice_has_phases_of_its_own(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        await house.collect("hello", max_tokens=2, n=3)
    assert [span.attributes["dormouse.choice"] for span in spans.named("decode")] == [0, 1, 2]
    assert len(spans.named("generate")) == 1


async def test_a_call_without_a_trace_begins_one(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        await house.collect("hello", metadata=(("traceparent", "00-nonsense"),))
    assert parent_id(spans.one("generate")) is None


async def test_a_refused_call_tells_its_status_and_is_no_error_of_the_servers(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        call = house.generate("hi", temperature=-1.0)
        assert (await house.refusal(call.read())).code() is grpc.StatusCode.INVALID_ARGUMENT
    span = spans.one("generate")
    assert (span.attributes["error.type"], span.status.status_code) == ("INVALID_ARGUMENT", StatusCode.UNSET)
    assert len(spans.all()) == 1


async def test_a_call_whose_caller_left_says_so(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        call = await house.begin_request()
        call.cancel()
        await house.front.worker.until_idle()
    assert spans.one("generate").attributes["rpc.response.status_code"] == "CANCELLED"
    assert [span.name for span in spans.all()] == ["queue", "generate"]


async def test_a_call_that_the_engine_lost_is_an_error(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        call = await house.begin_request()
        house.front.worker.requests.fail_all("the engine died")
        error = await house.refusal(call.read())
    span = spans.one("generate")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, error.details())


async def test_what_is_not_sampled_costs_no_span(open_house, spans):
    async with open_house(tracer=spans.tracer) as house:
        await house.collect("hello", metadata=((CALLED[0][0], CALLED[0][1][:-2] + "00"),))
    assert spans.all() == ()
