"""From a client through the gateway to workers and back, over real sockets."""

import asyncio
from datetime import UTC, datetime

import grpc
import pytest

from dormouse_api.status import CallError, retry_after_s
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.workers import NAMESPACE, FakeWorker, pod, set_ready
from dormouse_kube.api import ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Unavailable
from dormouse_kube.reflector import ObjectKey
from tests.gateway.kit import ask, refusal_of, tokens_of

TINY = ObjectKey(NAMESPACE, "tiny")


async def test_a_request_reaches_a_ready_worker_and_its_answer_comes_back(house, workers):
    await house.add("tiny", workers[:1])
    responses = [response async for response in ask(house)]
    assert [list(response.token_ids) for response in responses] == [[1], [2], [3], []]
    assert responses[-1].finish_reason == pb.FINISH_REASON_STOP
    assert house.outstanding() == 0


UNKNOWN = b"\xfa\x3f\x03new"  # field 1023, three bytes


class NewerWorker(FakeWorker):
    """Answers with a field that this gateway does not know."""

    async def Generate(self, request, context):  # noqa: N802  # the .proto's name
        async for message in super().Generate(request, context):
            message.MergeFromString(UNKNOWN)
            yield message


async def test_fields_that_the_gateway_does_not_know_come_from_workers_and_do_not_go_to_them(house):
    """Nobody has checked what a client says in them; what a newer worker says to a newer client is theirs."""
    worker = NewerWorker()
    await worker.start()
    await house.add("tiny", [worker])
    raw = pb.GenerateRequest(model="tiny", text="a").SerializeToString() + UNKNOWN
    answers = [
        message async for message in house.channel.unary_stream("/dormouse.v1.Inference/Generate")(raw, timeout=90)
    ]
    assert [UNKNOWN in answer for answer in answers] == [True] * 4
    assert UNKNOWN not in worker.seen[0].request.SerializeToString()
    await worker.stop()


@pytest.mark.parametrize("name", ["default/tiny", "my-model"])
async def test_a_model_answers_to_its_full_name_and_to_its_model_name(house, workers, name):
    await house.add("tiny", workers[:1], model="my-model")
    assert await tokens_of(ask(house, name)) == [1, 2, 3]
    assert workers[0].seen[0].request.model == "my-model", "the name that the worker knows itself by"


async def test_requests_go_to_the_worker_with_the_fewest_outstanding(house, workers):
    await house.add("tiny", workers)
    for worker in workers:
        worker.is_gated = True
    calls = [asyncio.create_task(tokens_of(ask(house))) for _ in range(6)]
    await house.until(lambda: house.outstanding() == 6)
    await house.until(lambda: [len(worker.seen) for worker in workers] == [3, 3])
    assert house.gateway.metrics.value("dormouse_gateway_in_flight", model="default/tiny") == 6
    for worker in workers:
        worker.gate.set()
    assert await asyncio.gather(*calls) == [[1, 2, 3]] * 6


async def test_prompts_that_begin_alike_go_to_one_worker_and_that_is_counted(house, workers):
    await house.add("tiny", workers)
    for number in range(6):
        beginning = "".join(f"{number}" * 2000)
        before = [len(worker.seen) for worker in workers]
        for end in "abc":
            await tokens_of(house.stub.Generate(pb.GenerateRequest(model="tiny", text=beginning + end), timeout=90))
        gained = [len(worker.seen) - seen for worker, seen in zip(workers, before, strict=True)]
        assert sorted(gained) == [0, 3], number
    assert all(worker.seen for worker in workers), "six prefixes, two workers: both keep some"
    hits = {"model": "default/tiny", "outcome": "hit"}
    assert house.gateway.metrics.value("dormouse_gateway_prefix_affinity_total", **hits) == 18


async def test_callers_with_different_keys_share_no_prefix_and_so_need_share_no_worker(house, workers):
    await house.add("tiny", workers)
    request = pb.GenerateRequest(model="tiny", text="a" * 2000)
    for number in range(12):
        bearer = (("authorization", f"Bearer key {number}"),)
        await tokens_of(house.stub.Generate(request, timeout=90, metadata=bearer))
    assert all(worker.seen for worker in workers)


async def test_a_worker_that_keeps_failing_is_left_out_and_the_metrics_say_so(house, workers):
    now_s = 0.0
    house.gateway.router.pool.clock = lambda: now_s
    await house.add("tiny", workers)
    await house.until(lambda: house.gateway.router.activity.activity(TINY).awake_workers == 2)
    broken, well = workers
    broken.fail_before = CallError(grpc.StatusCode.INTERNAL, "look for id=1")
    failures = 0
    for _ in range(12):
        try:
            await tokens_of(ask(house))
        except grpc.RpcError:
            failures += 1
    assert (failures, len(broken.seen), len(well.seen)) == (3, 3, 9)

    def breaker(name):
        return house.gateway.metrics.value("dormouse_gateway_breaker", model="default/tiny", pod=f"tiny-{name}")

    assert (breaker("w0"), breaker("w1")) == (2, 0)
    broken.fail_before, now_s = None, 0.5
    assert breaker("w0") == 1
    for _ in range(8):
        await tokens_of(ask(house))
    assert (breaker("w0"), breaker("w1")) == (0, 0)
    assert len(broken.seen) > 3


async def test_requests_that_are_wrong_themselves_close_no_worker(house, workers):
    await house.add("tiny", workers[:1])
    workers[0].fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "temperature is -1; it must be at least 0")
    for _ in range(5):
        assert (await refusal_of(ask(house))).code() is grpc.StatusCode.INVALID_ARGUMENT
    workers[0].fail_before = None
    assert await tokens_of(ask(house)) == [1, 2, 3]
    assert len(house.gateway.holder) == 0


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(house, workers):
    await house.add("tiny", workers[:1])
    await house.add("other", [])
    error = await refusal_of(ask(house, "nobody"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "no model is called 'nobody'; known models: other, tiny"
    count = {"model": "unknown", "method": "Generate", "code": "NOT_FOUND"}
    assert house.gateway.metrics.value("dormouse_gateway_requests_total", **count) == 1
    assert house.gateway.metrics.value("dormouse_rejected_total", reason="unknown_model") == 1


async def test_before_the_first_list_nothing_is_called_unknown(make_house, kube):
    kube.fail("list", ENDPOINT_SLICES, Unavailable("the API server is away"), times=1_000_000)
    async with make_house(is_synced=False) as house:
        error = await refusal_of(ask(house))
        assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 1.0)
        assert error.details() == "this gateway is still learning the models"


async def test_no_ready_worker_is_unavailable_with_the_operators_reason(house, workers):
    await house.add("tiny", workers[:1], ready=False, lifecycle={"holdTimeoutSeconds": 0})
    ready = {"type": "Ready", "status": "False", "reason": "Loading", "message": "0 of 1 workers are ready"}
    status = {"phase": "Loading", "conditions": [ready]}
    house.kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj.update(status=status))
    await house.until(lambda: house.gateway.router.catalogue.find("tiny").phase)
    error = await refusal_of(ask(house))
    assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 1.0)
    assert error.details() == ("default/tiny has no ready worker (phase Loading); Loading: 0 of 1 workers are ready")


async def test_an_asleep_model_refuses_to_generate_but_tokenizes_and_describes_itself(house, workers):
    await house.add("tiny", workers[:1], ready=False, lifecycle={"desiredState": "Asleep"})
    error = await refusal_of(ask(house))
    assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 30.0)
    assert error.details() == "default/tiny is asleep: spec.lifecycle.desiredState is Asleep"
    answer = await house.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="ab"), timeout=90)
    assert list(answer.token_ids) == [97, 98]
    answer = await house.stub.Detokenize(pb.DetokenizeRequest(model="tiny", token_ids=[97]), timeout=90)
    assert answer.text == "a"
    assert (await house.stub.GetModel(pb.GetModelRequest(model="tiny"), timeout=90)).name == "w0"


async def test_without_any_pod_even_tokenizing_is_unavailable(house):
    await house.add("tiny", [])
    with pytest.raises(grpc.RpcError) as caught:
        await house.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="ab"), timeout=90)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "default/tiny has no running worker"


async def test_of_two_deployments_with_one_model_name_the_older_keeps_it(house, workers):
    house.kube.clock = lambda: datetime(2026, 1, 2, tzinfo=UTC)
    await house.add("young", workers[1:], model="tiny")
    house.kube.clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    await house.add("old", workers[:1], model="tiny")
    for name, worker in (("tiny", workers[0]), ("default/young", workers[1]), ("default/old", workers[0])):
        before = len(worker.seen)
        await tokens_of(ask(house, name))
        assert len(worker.seen) == before + 1, name


async def test_a_worker_that_joins_or_becomes_ready_is_used(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: house.gateway.router.activity.activity(TINY).awake_workers == 1)
    workers[1].tell_load(ready=False)
    house.kube.put(PODS, pod("tiny-w1", "tiny", workers[1].address, ready=False))
    states = {"model": "default/tiny", "state": "running"}
    await house.until(lambda: house.gateway.metrics.value("dormouse_gateway_endpoints", **states) == 1)
    workers[0].tell_load(ready=False)
    set_ready(house.kube, "tiny-w0", ready=False)
    workers[1].tell_load(ready=True)
    set_ready(house.kube, "tiny-w1", ready=True)
    await house.until(lambda: house.gateway.metrics.value("dormouse_gateway_endpoints", **states) == 1)
    await house.until(lambda: "tiny-w0 running" in repr(house.gateway.router.pool))
    await tokens_of(ask(house))
    assert [len(worker.seen) for worker in workers] == [0, 1]


async def test_a_terminating_worker_finishes_its_streams_and_gets_no_more(house, workers):
    await house.add("tiny", workers)
    for worker in workers:
        worker.is_gated = True
    call = ask(house)
    await call.read()
    busy, idle = sorted(workers, key=lambda worker: -len(worker.seen))
    name = f"tiny-{busy.name}"
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    house.kube.edit(PODS, NAMESPACE, name, lambda obj: obj["metadata"].update(leaving, finalizers=["a/b"]))
    await house.until(lambda: f"{name} retired" in repr(house.gateway.router.pool))
    later = asyncio.create_task(tokens_of(ask(house)))
    await idle.started.wait()
    busy.gate.set()
    idle.gate.set()
    assert await tokens_of(call) == [2, 3]
    assert await later == [1, 2, 3]
    assert busy.address not in repr(house.gateway.channels)
    assert repr(house.gateway.channels) == f"Channels({idle.address})"


async def test_a_deployment_that_is_deleted_is_unknown_and_leaves_no_series(house, workers):
    await house.add("tiny", workers[:1])
    await tokens_of(ask(house))
    await house.kube.delete(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
    await house.until(lambda: len(house.gateway.router.catalogue) == 0)
    assert (await refusal_of(ask(house))).code() is grpc.StatusCode.NOT_FOUND
    assert b"default/tiny" not in house.gateway.metrics.text()


async def test_while_the_api_server_is_away_the_gateway_serves_from_what_it_knows(house, workers):
    await house.add("tiny", workers[:1])
    for verb in ("list", "watch"):
        for kind in (ENDPOINT_SLICES, INFERENCE_DEPLOYMENTS):
            house.kube.fail(verb, kind, Unavailable("connection refused"), times=1_000_000)
    house.kube.end_watches(Unavailable("connection reset"))
    assert await tokens_of(ask(house)) == [1, 2, 3]
    assert house.gateway.router.is_synced


async def test_watch_load_is_for_workers_only(house):
    with pytest.raises(grpc.RpcError) as caught:
        [load async for load in house.stub.WatchLoad(pb.WatchLoadRequest(), timeout=90)]
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
