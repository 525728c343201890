"""What a call says beside its message: the cache salt is the gateway's, and the worker has deadlines of its own."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.auth import RoleTokens, role_metadata, token_digest
from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.status import CallError
from dormouse_worker.front.caller import Timeouts, caller_name, read_caller
from dormouse_worker.ipc import AbortRequests

Code = grpc.StatusCode
TOKEN = "the gateway's token"
GATEWAY = role_metadata(TOKEN)
TOKENS = RoleTokens({Role.GATEWAY: token_digest(TOKEN)})


def salted(*salts):
    return tuple((METADATA_CACHE_SALT, salt) for salt in salts)


async def test_the_gateways_salt_reaches_the_engine_and_nobody_elses_does(house):
    await house.collect("hi", metadata=(*GATEWAY, *salted("s" * 128)))
    assert house.engine.engine.received[-1].cache_salt == "s" * 128
    await house.collect("hi", metadata=GATEWAY)
    assert house.engine.engine.received[-1].cache_salt == ""
    refused = await house.refusal(house.generate("hi", metadata=salted("x")).read())
    assert (refused.code(), METADATA_CACHE_SALT in refused.details()) == (Code.INVALID_ARGUMENT, True)


def test_without_a_gateways_token_nobody_is_the_gateway():
    for tokens in (RoleTokens({}), RoleTokens({Role.GATEWAY: ""})):
        with pytest.raises(CallError, match="only by the gateway"):
            read_caller((*GATEWAY, *salted("x")), tokens, None, peer="ipv4:10.0.0.1:5000")
        assert not read_caller(GATEWAY, tokens, None, peer="ipv4:10.0.0.1:5000").is_gateway


@pytest.mark.parametrize(
    ("salts", "named"),
    [
        (["a", "b"], "2 times"),
        (["s" * 129], "129 characters"),
        (["a\nb"], r"\\n"),
        (["é"], r"\\xe9"),
        ([b"\xff"], "xff"),
    ],
)
def test_a_salt_is_one_short_printable_word(salts, named):
    with pytest.raises(CallError, match=f"{METADATA_CACHE_SALT} is .*{named}"):
        read_caller((*GATEWAY, *salted(*salts)), TOKENS, None, peer="ipv4:10.0.0.1:5000")


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ((*GATEWAY, *salted("key")), "key"),
        (GATEWAY, "ipv4:10.0.0.1"),
        (salted("key"), "ipv4:10.0.0.1"),  # whoever may say so takes as many turns as he likes
        (None, "ipv4:10.0.0.1"),
    ],
)
def test_callers_are_told_apart_by_their_keys_or_else_by_where_they_are(metadata, name):
    assert caller_name(metadata, TOKENS, "ipv4:10.0.0.1:5000") == name


@pytest.mark.parametrize(("salts", "name"), [(["key"], "key"), ([], "relay")])
def test_a_carried_call_is_its_keys(salts, name):
    assert read_caller((*GATEWAY, *salted(*salts)), TOKENS, None, peer="relay").name == name


def test_a_worker_has_deadlines_of_its_own():
    timeouts = Timeouts(default_s=10, max_s=100)
    assert timeouts.limit(None).seconds == 10
    assert timeouts.limit(100) is None
    assert timeouts.limit(100.5).seconds == 100


async def test_a_request_without_a_deadline_ends_at_the_default_and_is_freed(open_house):
    async with open_house(default_timeout_s=1.5) as house:  # so that it is long enough to become ready in
        house.engine.is_paused = True
        refused = await house.refusal(house.generate("hi", n=2, timeout=None).read())
        assert refused.code() is Code.DEADLINE_EXCEEDED
        assert "1.5 s" in refused.details()
        assert "--default-timeout-seconds" in refused.details()
        assert (await house.engine.until_received(lambda m: isinstance(m, AbortRequests))).request_ids == ["1", "2"]


async def test_a_longer_deadline_is_cut_to_the_longest_allowed(open_house):
    async with open_house(max_timeout_s=0.02) as house:
        house.engine.is_paused = True
        refused = await house.refusal(house.generate("hi", timeout=500).read())
        assert refused.code() is Code.DEADLINE_EXCEEDED
        assert "--max-timeout-seconds" in refused.details()
        assert len(house.front.worker.requests) == 0
