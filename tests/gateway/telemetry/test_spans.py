"""What a gateway that traces says of requests. Over real sockets; the spans are kept in memory."""

import asyncio
import re
import time

import aiohttp
import grpc
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from dormouse_api.client import AsyncClient
from dormouse_api.testing_spans import KeptSpans, linked_ids, parent_id, span_id
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.telemetry.spans import OtelTraces
from dormouse_gateway.testing.workers import unavailable
from tests.gateway.conftest import running_house
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.gateway.migrate.test_migrator_waits import cut_off, end
from tests.gateway.moving import ALL, ONE, answer_of, check_whole, narrators
from tests.gateway.test_holding import TINY, add_asleep, held, set_status

TRACE_ID, PARENT_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
CALLED = (("traceparent", f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"), ("tracestate", "a=b"))
IGNORED = (("traceparent", f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-00"),)
TEXT = "text_completion default/tiny"


@pytest.fixture
def spans():
    return KeptSpans()


@pytest.fixture
async def house(kube, spans):
    async with running_house(kube, traces=OtelTraces(spans.tracer)) as made:
        yield made


async def hold(house, count, **how):
    """Begin so many requests, one after the other, for a model that sleeps."""
    calls = []
    for number in range(count):
        calls.append(ask(house, **how))
        await house.until(lambda number=number: held(house) == number + 1)
        assert (await calls[-1].initial_metadata())["dormouse-held"] == "true"
    return calls


async def wake(house, worker):
    set_status(house, phase="Active")
    worker.tell_load(ready=True)


async def ended(house, spans, name, count=1):
    """Return the spans of this name, once there are so many: they end just after their clients got everything."""
    await house.until(lambda: len(spans.named(name)) >= count)
    return spans.named(name)


async def test_a_request_continues_its_clients_trace_and_its_worker_continues_it(house, workers, spans):
    await house.add("tiny", workers[:1])
    assert await tokens_of(ask(house, metadata=CALLED)) == [1, 2, 3]
    (span,) = await ended(house, spans, TEXT)
    assert (span.context.trace_id, parent_id(span)) == (TRACE_ID, PARENT_ID)
    (seen,) = workers[0].seen
    assert seen.values("traceparent") == [f"00-{TRACE_ID:032x}-{span_id(span):016x}-01"]
    assert seen.values("tracestate") == ["a=b"]
    assert [event.name for event in span.events] == ["sent", "first message"]


async def test_the_python_clients_span_is_the_parent_of_the_gateways(house, workers, spans):
    await house.add("tiny", workers[:1])
    async with AsyncClient(f"127.0.0.1:{house.ports.inference}", tracer=spans.tracer) as client:
        request = pb.GenerateRequest(model="default/tiny", text="a")
        assert [token async for response in client.generate(request) for token in response.token_ids] == [1, 2, 3]
    told = {span.kind: span for span in await ended(house, spans, TEXT, 2)}
    client_span, gateway_span = told[SpanKind.CLIENT], told[SpanKind.SERVER]
    assert client_span.parent is None
    assert parent_id(gateway_span) == span_id(client_span)
    assert gateway_span.context.trace_id == client_span.context.trace_id


async def test_a_request_tells_what_was_asked_and_how_much_came_and_never_its_words(house, spans):
    worker = TalkingWorker()
    await worker.start()
    await house.add("tiny", [worker])
    params = pb.SamplingParams(max_tokens=2, temperature=0.5)
    await tokens_of(ask(house, request_id="mine", sampling_params=params))
    (span,) = await ended(house, spans, TEXT)
    assert dict(span.attributes) == {
        "dormouse.attempts": 1,
        "dormouse.door": "grpc",
        "dormouse.migrated": False,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "dormouse",
        "gen_ai.request.max_tokens": 2,
        "gen_ai.request.model": "default/tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.id": "mine",
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "rpc.response.status_code": "OK",
    }
    await worker.stop()


async def test_requests_that_wait_for_one_wake_link_to_its_one_span(house, workers, spans):
    await add_asleep(house, workers[0])
    calls = await hold(house, 3)
    await wake(house, workers[0])
    assert await asyncio.gather(*map(tokens_of, calls)) == [[1, 2, 3]] * 3
    requests, holds = await ended(house, spans, TEXT, 3), spans.named("hold")
    wake_span = spans.one("wake")
    assert [linked_ids(span) for span in holds] == [[span_id(wake_span)]] * 3
    assert {parent_id(span) for span in holds} == {span_id(span) for span in requests}
    first = min(requests, key=lambda span: span.start_time)
    assert parent_id(wake_span) == span_id(first)
    assert (wake_span.attributes["dormouse.start"], wake_span.status.status_code) == ("level2", StatusCode.OK)
    for span in holds:
        (request,) = (one for one in requests if span_id(one) == parent_id(span))
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time
        assert request.attributes["dormouse.start"] == "level2"
    assert wake_span.end_time <= min(span.end_time for span in holds)


async def test_the_next_wake_has_a_span_of_its_own(house, workers, spans):
    await add_asleep(house, workers[0])
    for number in (1, 2):
        (call,) = await hold(house, 1)
        await wake(house, workers[0])
        assert await tokens_of(call) == [1, 2, 3]
        await ended(house, spans, TEXT, number)
        assert len(spans.named("wake")) == number
        workers[0].tell_load(ready=False)
        await house.until(lambda: not house.gateway.router.pool.is_ready(TINY))
    first, second = spans.named("hold")
    assert linked_ids(first) != linked_ids(second)


async def test_a_wake_that_nobody_waits_for_any_more_ends_with_an_error_and_so_does_what_was_refused(
    house, workers, spans
):
    await add_asleep(house, workers[0], holdTimeoutSeconds=1)
    refusal = await refusal_of(ask(house))
    assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    (request,) = await ended(house, spans, TEXT)
    for span in (request, spans.one("hold"), spans.one("wake")):
        assert span.status.status_code is StatusCode.ERROR
    assert request.status.description == refusal.details()
    assert request.attributes["error.type"] == "UNAVAILABLE"
    assert spans.one("wake").attributes["dormouse.wake.awake"] is False


async def test_a_client_that_leaves_while_it_is_held_ends_its_spans_without_an_error(house, workers, spans):
    await add_asleep(house, workers[0])
    (call,) = await hold(house, 1)
    call.cancel()
    (request,) = await ended(house, spans, TEXT)
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes["rpc.response.status_code"] == "CANCELLED"
    assert parent_id(spans.one("hold")) == span_id(request)


async def test_a_request_that_waits_for_a_busy_worker_links_to_no_wake(kube, workers, spans):
    async with running_house(kube, traces=OtelTraces(spans.tracer), worker_queue=0) as house:
        await house.add("tiny", workers[:1], engine={"maxNumSeqs": 1})
        workers[0].is_gated = True
        first = ask(house)
        await first.read()
        (second,) = await hold(house, 1)
        workers[0].gate.set()
        assert await tokens_of(second) == [1, 2, 3]
        await tokens_of(first)
        await ended(house, spans, TEXT, 2)
    assert linked_ids(spans.one("hold")) == []
    assert spans.named("wake") == []


async def test_a_stream_that_moves_says_so_and_where_it_was(house, spans):
    async with narrators(2, dies_after=4) as workers:
        await house.add("tiny", workers)
        check_whole(await answer_of(ask(house, sampling_params=ONE)), 1)
        (span,) = await ended(house, spans, TEXT)
        assert (span.attributes["dormouse.migrated"], span.attributes["dormouse.attempts"]) == (True, 3)
        sent = [event.attributes["dormouse.worker"] for event in span.events if event.name == "sent"]
        assert sent == ["default/tiny-w0", "default/tiny-w1", "default/tiny-w0"]


async def test_the_choices_of_a_stream_that_wait_side_by_side_are_one_hold_from_the_first_to_the_last(kube, spans):
    told_ns = []

    def now_ns():
        told_ns.append(time.time_ns())
        return told_ns[-1]

    traces = OtelTraces(spans.tracer, now_ns=now_ns)
    async with running_house(kube, traces=traces, worker_queue=0) as house, narrators(1) as workers:
        await house.add("tiny", workers, engine={"maxNumSeqs": 1})
        async with cut_off(house, workers[0], sampling_params=ALL) as (call, answer):
            await house.until(lambda: held(house) == 3)
            workers[0].tell_load(ready=True)
            check_whole(await end(call, answer), 3)
        (request,) = await ended(house, spans, TEXT)
    hold = spans.one("hold")
    _, first, second, third = (event.timestamp for event in request.events if event.name == "sent")
    assert hold.start_time == told_ns[0]
    assert hold.start_time < first < second < hold.end_time <= third


async def test_an_error_of_the_servers_is_one_of_the_span_and_an_error_of_the_clients_is_not(house, workers, spans):
    workers[0].fail_before = unavailable("no more")
    await house.add("tiny", workers[:1])
    assert (await refusal_of(ask(house))).code() is grpc.StatusCode.UNAVAILABLE
    assert (await refusal_of(ask(house, model="nobody"))).code() is grpc.StatusCode.NOT_FOUND
    (ours,), (theirs,) = await ended(house, spans, TEXT), await ended(house, spans, "generate")
    assert ours.status.status_code is StatusCode.ERROR
    assert theirs.status.status_code is StatusCode.UNSET
    assert theirs.attributes["error.type"] == "NOT_FOUND"


async def test_a_chat_over_http_is_traced_too(house, workers, spans):
    await house.add("tiny", workers[:1])
    url = f"http://127.0.0.1:{house.ports.openai}/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 2}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=dict(CALLED)) as answer:
        await answer.read()
    (span,) = await ended(house, spans, "chat default/tiny")
    assert (span.context.trace_id, parent_id(span)) == (TRACE_ID, PARENT_ID)
    assert (span.attributes["dormouse.door"], span.attributes["gen_ai.request.choice.count"]) == ("http", 2)


async def test_what_the_client_or_the_ratio_leaves_out_has_no_spans_and_workers_are_told(kube, workers):
    spans = KeptSpans(ALWAYS_OFF)
    async with running_house(kube, traces=OtelTraces(spans.tracer)) as house:
        await add_asleep(house, workers[0])
        calls = (
            await hold(house, 1) + await hold_more(house, metadata=IGNORED) + await hold_more(house, metadata=CALLED)
        )
        await wake(house, workers[0])
        await asyncio.gather(*map(tokens_of, calls))
        await ended(house, spans, TEXT)
    contexts = [seen.values("traceparent")[0] for seen in workers[0].seen]
    assert sorted(int(context[-2:], 16) & 1 for context in contexts) == [0, 0, 1]
    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]", context) for context in contexts)
    assert sorted(span.name for span in spans.all()) == ["hold", TEXT, "wake"]
    assert parent_id(spans.one("wake")) == span_id(spans.one(TEXT))


async def hold_more(house, **how):
    before = held(house)
    call = ask(house, **how)
    await house.until(lambda: held(house) == before + 1)
    await call.initial_metadata()
    return [call]


async def test_other_methods_pass_the_context_through(house, workers, spans):
    await house.add("tiny", workers[:1])
    await house.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="ab"), metadata=CALLED)
    assert workers[0].seen[-1].values("traceparent") == [CALLED[0][1]]
    assert spans.all() == ()
