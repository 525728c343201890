"""InferenceKeys at the gateway: who is let in, to which models, and what ends with the key."""

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc import aio

from dormouse_api.status import CallError
from dormouse_gateway.clients.keys import ANYBODY, Keyring
from dormouse_gateway.testing.workers import NAMESPACE, deployment
from dormouse_kube.api import INFERENCE_KEYS
from dormouse_kube.errors import NotFound
from dormouse_kube.reflector import ObjectKey
from tests.gateway.clients.test_keys import bearer, write_key
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.waiting import until

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def infk(name, *, namespace=NAMESPACE, secret="", created="2026-01-01T00:00:00Z", **spec):
    digest = hashlib.sha256((secret or f"{name}-secret").encode()).hexdigest()
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"sha256": digest, **spec}}


def keyring_of(*objects, now=lambda: NOW, **settings):
    keyring = Keyring(now=now, **settings)
    for obj in objects:
        keyring.on_object(ObjectKey(obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)
    return keyring


def refusal(keyring, name):
    with pytest.raises(CallError) as caught:
        keyring.identify(bearer(f"{name}-secret"))
    return caught.value


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        (None, {"default/tiny", "default/other"}),
        (["*"], {"default/tiny", "default/other"}),
        ([], set()),
        (["tiny"], {"default/tiny"}),
        (["default/tiny"], set()),
        (["elsewhere/tiny", "foreign"], set()),
    ],
)
def test_a_key_opens_models_of_its_own_namespace_only(models, allowed):
    spec = {} if models is None else {"models": models}
    caller = keyring_of(infk("a", **spec)).identify(bearer("a-secret"))
    mine = [deployment("tiny"), deployment("other")]
    foreign = deployment("foreign", key=ObjectKey("elsewhere", "foreign"))
    assert {each.full_name for each in (*mine, foreign) if caller.may_use(each, each.full_name)} == allowed
    assert {each.full_name for each in (*mine, foreign) if caller.owns(each)} == allowed


def test_a_key_may_name_a_model_as_clients_call_it():
    caller = keyring_of(infk("a", models=["org/Model-7B"])).identify(bearer("a-secret"))
    assert caller.may_use(deployment("tiny"), "org/Model-7B")
    assert caller.name("ipv4:1.2.3.4:5") == "key default/a"


def test_who_copies_a_digest_takes_no_key_over_and_the_younger_counts_once_the_older_is_gone():
    old = infk("old", namespace="zoo", secret="same")
    young = infk("young", namespace="ape", secret="same", created="2026-02-01T00:00:00Z")
    keyring = keyring_of(young, old)
    assert keyring.identify(bearer("same")).key.name == "zoo/old"
    keyring.on_object(ObjectKey("zoo", "old"), None)
    assert keyring.identify(bearer("same")).key.name == "ape/young"


def test_a_key_of_a_file_goes_before_an_object_with_its_digest(tmp_path):
    write_key(tmp_path, "a")
    keyring = keyring_of(infk("a"), directory=tmp_path)
    assert keyring.identify(bearer("a-secret")).key.name == "a"


@pytest.mark.parametrize(
    "field", [{"sha256": "short"}, {"expires": "soon"}, {"expires": "2027-01-01"}, {"maxConcurrent": 0}]
)
def test_an_object_that_cannot_be_read_lets_nobody_in_and_says_why(field, caplog):
    keyring = keyring_of(infk("a", **field), is_required=True)
    assert refusal(keyring, "a").message == "the API key is not known"
    assert next(iter(field)) in caplog.text


def test_where_no_key_is_required_a_known_one_counts_and_an_unknown_one_is_anybody():
    keyring = keyring_of(infk("a"), infk("old", expires="2026-12-31T00:00:00Z"))
    assert keyring.identify(bearer("a-secret")).key.name == "default/a"
    assert keyring.identify(bearer("b-secret")) is ANYBODY
    assert keyring.identify(()) is ANYBODY
    assert refusal(keyring, "old").message == "the API key default/old expired at 2026-12-31T00:00:00Z"


def test_an_empty_cluster_lets_nobody_in_where_a_key_is_required():
    assert refusal(Keyring(is_required=True), "a").code is grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
async def keyed(make_house, workers):
    async with make_house(require_api_keys=True) as house:
        house.kube.put(INFERENCE_KEYS, infk("a"))
        await house.add("tiny", workers[:1])
        await until(house.gateway._keys.objects.names)
        workers[0].is_gated = True
        yield house


def call_of(house):
    return ask(house, metadata=aio.Metadata(*bearer("a-secret")))


async def test_a_key_that_is_deleted_ends_its_stream_and_no_other(keyed, workers):
    keyed.kube.put(INFERENCE_KEYS, infk("b"))
    await until(lambda: len(keyed.gateway._keys.objects.names()) == 2)
    call, other = call_of(keyed), ask(keyed, metadata=aio.Metadata(*bearer("b-secret")))
    await call.read()
    await other.read()
    await keyed.kube.delete(INFERENCE_KEYS, NAMESPACE, "a")
    refused = await refusal_of(call)
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    assert refused.details() == "the API key default/a was revoked"
    await until(lambda: keyed.outstanding() == 1)
    workers[0].gate.set()
    assert await tokens_of(other) == [2, 3]
    assert (await refusal_of(call_of(keyed))).details() == "the API key is not known"


async def test_a_key_that_is_deleted_ends_a_request_that_is_held(make_house, workers):
    async with make_house(require_api_keys=True) as house:
        house.kube.put(INFERENCE_KEYS, infk("a"))
        await house.add("tiny", workers[:1], ready=False)
        call = call_of(house)
        await until(lambda: len(house.gateway.holder) == 1)
        await house.kube.delete(INFERENCE_KEYS, NAMESPACE, "a")
        assert (await refusal_of(call)).details() == "the API key default/a was revoked"
        assert len(house.gateway.holder) == 0
        house.gateway.holder.check_integrity()


async def test_another_digest_revokes_the_former_key(keyed):
    call = call_of(keyed)
    await call.read()
    keyed.kube.put(INFERENCE_KEYS, infk("a", secret="renewed"))
    assert (await refusal_of(call)).details() == "the API key default/a was revoked"


async def test_a_key_that_expires_ends_its_stream_whenever_the_clock_gets_there():
    """The wall clock may jump over the time, and back before it."""
    now = [NOW]
    keyring = keyring_of(infk("a", expires="2027-01-01T01:00:00Z"), now=lambda: now[0])
    caller, ended = keyring.identify(bearer("a-secret")), asyncio.Event()

    async def run():
        try:
            async with keyring.tenure(caller):
                await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run())
    await asyncio.sleep(0)
    now[0] = NOW - timedelta(days=1)
    keyring.review()
    await asyncio.sleep(0)
    assert not ended.is_set()
    now[0] = NOW + timedelta(days=1)
    keyring.review()
    with pytest.raises(CallError, match="expired at 2027-01-01T01:00:00Z"):
        await running


async def test_a_client_that_goes_away_is_not_mistaken_for_a_revoked_key():
    keyring = keyring_of(infk("a"))
    caller = keyring.identify(bearer("a-secret"))

    async def run():
        async with keyring.tenure(caller):
            await asyncio.Event().wait()

    running = asyncio.create_task(run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_gateway_without_the_definition_serves_those_who_need_no_key(make_house, kube, workers):
    missing = NotFound("the server could not find the requested resource", status=404)
    kube.fail("list", INFERENCE_KEYS, missing, times=1000)
    async with make_house() as house:
        await house.add("tiny", workers[:1])
        assert await tokens_of(ask(house)) == [1, 2, 3]
