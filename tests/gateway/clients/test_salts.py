"""Callers with different API keys share no cached prefixes, and no worker learns a key."""

import hashlib
import hmac
import re
from pathlib import Path

import grpc
import pytest
from grpc import aio

from dormouse_api.limits import MAX_CACHE_SALT_CHARS
from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER, Role
from dormouse_api.status import CallError
from dormouse_api.testing_tickets import GATEWAY_SEED, POD_UID, public_key
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.requests import forwarded_metadata
from dormouse_gateway.clients.salts import NO_KEY, Salts
from dormouse_gateway.testing.workers import FakeWorker
from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import AddRequest, State
from dormouse_worker.front.app import Front
from dormouse_worker.front.testing import engine_settings, front_settings, write_model
from dormouse_worker.testing.in_process import InProcessEngine

SALTS = Salts(GATEWAY_SEED)


def cache_salt(metadata):
    return SALTS.salt(metadata)


def bearer(key, scheme="Bearer"):
    return (("authorization", f"{scheme} {key}"),)


def test_one_key_gives_one_salt_and_another_key_another():
    assert cache_salt(bearer("key-a")) == cache_salt(bearer("key-a"))
    assert len({cache_salt(bearer(key)) for key in ("key-a", "key-b", "KEY-A")}) == 3


def test_a_salt_tells_nothing_of_the_key_and_is_one_that_workers_take():
    salt = cache_salt(bearer("key-a"))
    assert re.fullmatch("[0-9a-f]{64}", salt)
    assert len(salt) <= MAX_CACHE_SALT_CHARS
    assert salt != hashlib.sha256(b"key-a").hexdigest(), "whoever stores digests of keys must not find them here"


def test_who_does_not_know_the_releases_secret_can_not_compute_a_salt():
    salts = {Salts(secret).salt(bearer("key-a")) for secret in ("", "one release", "another release")}
    assert len(salts) == 3
    known = (b"key-a", b"dormouse cache salt\0key-a")
    assert salts.isdisjoint(hashlib.sha256(text).hexdigest() for text in known)


def test_the_secret_is_not_used_as_it_is_and_not_shown():
    direct = hmac.digest(b"s", b"key-a", "sha256").hex()
    assert Salts("s").salt(bearer("key-a")) != direct, "the same secret signs other things"
    assert repr(Salts("secret")) == "Salts()"


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("traceparent", "00-1"),),
        (("authorization", ""),),
        (("authorization", "key-a"),),
        bearer(""),
        bearer("key-a", "Basic"),
    ],
)
def test_without_a_key_there_is_one_common_salt(metadata):
    assert cache_salt(metadata) == NO_KEY == ""


def test_spaces_and_the_case_of_the_scheme_make_no_other_key():
    assert cache_salt((("Authorization", "  bearer   key-a "),)) == cache_salt(bearer("key-a"))
    assert cache_salt((("authorization", b"Bearer key-a"),)) == cache_salt(bearer("key-a"))


def test_two_keys_in_one_call_are_refused():
    with pytest.raises(CallError, match="authorization is given 2 times") as caught:
        cache_salt((*bearer("key-a"), *bearer("key-b")))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_workers_get_the_salt_beside_the_role_and_never_a_clients_own():
    given = ((METADATA_CACHE_SALT, "chosen"), ("Dormouse-Cache-Salt", "chosen"), *bearer("key-a"))
    salted = (METADATA_CACHE_SALT, cache_salt(bearer("key-a")))
    named = (METADATA_CALLER, SALTS.alias("him"))
    assert forwarded_metadata(given, caller="him", has_role=True, salts=SALTS) == (named, salted)
    assert forwarded_metadata(given[:2], caller="him", has_role=True, salts=SALTS) == (named,)


def test_a_gateway_without_a_role_sends_no_salt_for_workers_would_refuse_it():
    assert forwarded_metadata(bearer("key-a"), caller="him", has_role=False, salts=SALTS) == ()


def test_workers_learn_of_a_callers_name_nothing_but_whether_it_is_the_same():
    alias = SALTS.alias("key team-a")
    assert re.fullmatch("[0-9a-f]{64}", alias)
    assert alias == SALTS.alias("key team-a")
    assert len({alias, SALTS.alias("at 10.0.0.1"), Salts("s").alias("key team-a")}) == 3
    assert alias != SALTS.salt(bearer("key team-a")), "who has a key cannot name himself as another"


async def salt_of(house, engine, *metadata):
    """Send a request through the gateway; return the salt with which it reached the engine."""
    request = pb.GenerateRequest(model="tiny", token_ids=pb.TokenIds(ids=[1]), sampling_params={"max_tokens": 1})
    async for _ in house.stub.Generate(request, metadata=aio.Metadata(*metadata), timeout=90):
        pass
    return [message for message in engine.engine.received if isinstance(message, AddRequest)][-1].cache_salt


@pytest.fixture
async def engine(tmp_path: Path, house):
    """An engine behind a real worker front, which the gateway knows as the model tiny."""
    engine = InProcessEngine()
    settings = front_settings(gateway_key=public_key(Role.GATEWAY))
    front = Front(settings, engine_settings(write_model(tmp_path / "model")), lambda _: engine.spawn)
    ports = await front.start()
    try:
        await front.worker.changes.until(lambda: front.worker.board.state is State.PROFILED)
        await front.worker.command(InitializeCache(10))
        await house.add("tiny", [FakeWorker(port=ports.inference)], uid=POD_UID)
        yield engine
    finally:
        await front.close()


async def test_the_key_decides_with_which_salt_a_request_reaches_the_engine(house, engine):
    first = await salt_of(house, engine, *bearer("key-a"), (METADATA_CACHE_SALT, "chosen"))
    assert first == cache_salt(bearer("key-a"))
    assert await salt_of(house, engine, *bearer("key-a")) == first
    assert await salt_of(house, engine, *bearer("key-b")) not in {first, ""}
    assert await salt_of(house, engine) == ""
