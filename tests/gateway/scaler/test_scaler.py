"""The external scaler as KEDA asks it: over gRPC, by KEDA's own names."""

import asyncio

import grpc
import pytest
from grpc import aio

from dormouse_api.foreign import external_scaler_pb2 as pb
from dormouse_api.foreign import external_scaler_pb2_grpc as rpc
from dormouse_gateway.testing.workers import NAMESPACE, running_workers
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.reflector import ObjectKey
from tests.gateway.conftest import running_house
from tests.gateway.kit import ask, tokens_of
from tests.waiting import until

SECONDS = 30


@pytest.fixture
async def scaled(kube):
    """A gateway with a model of one worker, which waits after its first token, and KEDA's stub."""
    async with (
        running_workers(1) as workers,
        running_house(kube, scaler_port=0) as house,
        aio.insecure_channel(f"127.0.0.1:{house.ports.scaler}") as channel,
    ):
        workers[0].is_gated = True
        await house.add("tiny", workers)
        house.scaler, house.worker = rpc.ExternalScalerStub(channel), workers[0]
        yield house


def ref(namespace=NAMESPACE, **said):
    return pb.ScaledObjectRef(name="any", namespace=namespace, scalerMetadata={"deployment": "tiny", **said})


async def value(house):
    request = pb.GetMetricsRequest(scaledObjectRef=ref(), metricName="dormouse-outstanding")
    (metric,) = (await house.scaler.GetMetrics(request, timeout=SECONDS)).metricValues
    assert metric.metricValue == metric.metricValueFloat
    return metric.metricValueFloat


async def refusal(house, said):
    with pytest.raises(grpc.RpcError) as caught:
        await house.scaler.IsActive(said, timeout=SECONDS)
    return caught.value.code().name, caught.value.details()


async def last_of(stream):
    while await stream.read() is not aio.EOF:
        pass


async def test_what_runs_and_what_waits_is_counted_and_its_end_too(scaled):
    assert await value(scaled) == 0
    assert not (await scaled.scaler.IsActive(ref(), timeout=SECONDS)).result
    running = ask(scaled)
    await running.read()
    assert await value(scaled) == 1
    assert (await scaled.scaler.IsActive(ref(), timeout=SECONDS)).result
    scaled.worker.tell_load(ready=False)
    await scaled.until(
        lambda: not scaled.gateway.router.pool.is_ready(scaled.gateway.router.catalogue.find("tiny").key)
    )
    held = asyncio.create_task(tokens_of(ask(scaled)))
    await scaled.until(lambda: len(scaled.gateway.holder) == 1)
    assert await value(scaled) == 2
    scaled.worker.gate.set()
    scaled.worker.tell_load(ready=True)
    assert await held == [1, 2, 3]
    await tokens_of(running)
    await scaled.until(lambda: not scaled.outstanding())
    assert await value(scaled) == 0


async def test_requests_of_other_gateways_count_as_their_workers_tell(scaled):
    scaled.worker.tell_load(running_requests=40, waiting_requests=30)
    activity, key = scaled.gateway.router.activity, scaled.gateway.router.catalogue.find("tiny").key
    await scaled.until(lambda: activity.activity(key).running == 40)
    assert await value(scaled) == 70


async def test_a_change_is_pushed_at_once_and_the_same_is_not_told_again(scaled):
    stream = scaled.scaler.StreamIsActive(ref(), timeout=SECONDS)
    assert not (await stream.read()).result
    calls = [ask(scaled) for _ in range(3)]
    assert (await stream.read()).result
    scaled.worker.gate.set()
    for call in calls:
        await tokens_of(call)
    assert not (await stream.read()).result
    stream.cancel()


async def test_a_keda_that_hangs_up_leaves_nobody_listening(scaled):
    activity, key = scaled.gateway.router.activity, ObjectKey(NAMESPACE, "tiny")
    streams = [scaled.scaler.StreamIsActive(ref(), timeout=SECONDS) for _ in range(3)]
    for stream in streams:
        await stream.read()
    assert len(activity._readers_of[key]) == 3
    for stream in streams:
        stream.cancel()
    await until(lambda: key not in activity._readers_of)


async def test_the_target_is_the_triggers_or_as_where_the_operator_scales(scaled):
    for said, size in (({}, 32), ({"targetOutstandingPerReplica": "2.5"}, 2.5)):
        (spec,) = (await scaled.scaler.GetMetricSpec(ref(**said), timeout=SECONDS)).metricSpecs
        assert (spec.metricName, spec.targetSizeFloat) == ("dormouse-outstanding", size)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (ref(deployment="other"), "NOT_FOUND", "no InferenceDeployment default/other"),
        (ref("elsewhere"), "NOT_FOUND", "no InferenceDeployment elsewhere/tiny"),
        (ref(deployment="default/tiny"), "INVALID_ARGUMENT", "metadata.deployment is 'default/tiny'"),
        (ref(targetOutstandingPerReplica="0"), "INVALID_ARGUMENT", "metadata.targetOutstandingPerReplica is '0'"),
        (ref(targetOutstandingPerReplica="many"), "INVALID_ARGUMENT", "is 'many'; allowed are numbers above 0"),
    ],
)
async def test_what_cannot_be_scaled_is_refused_by_name(scaled, said, code, words):
    found = await refusal(scaled, said)
    assert found[0] == code
    assert words in found[1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"scaling": {"maxReplicas": 3}}, "remove spec.scaling or the ScaledObject"),
        ({"replicas": 0}, "minReplicaCount must be at least 1"),
    ],
)
async def test_replicas_have_one_owner_and_a_stream_ends_when_that_is_another(scaled, kube, spec, words):
    stream = scaled.scaler.StreamIsActive(ref(), timeout=SECONDS)
    await stream.read()
    kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj["spec"].update(spec))
    await scaled.until(lambda: "scaling" not in spec or scaled.gateway.router.catalogue.find("tiny").is_scaled)
    await scaled.until(lambda: "replicas" not in spec or not scaled.gateway.router.catalogue.find("tiny").replicas)
    code, told = await refusal(scaled, ref())
    assert code == "FAILED_PRECONDITION"
    assert words in told
    calls = ask(scaled)  # the next change
    with pytest.raises(grpc.RpcError):
        await last_of(stream)
    calls.cancel()
