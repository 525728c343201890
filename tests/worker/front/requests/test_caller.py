"""What a call says beside its message: the cache salt is the gateway's, and the worker has deadlines of its own."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER, Role
from dormouse_api.status import CallError
from dormouse_api.testing_tickets import knows, proof
from dormouse_worker.common.ipc import AbortRequests, AddRequest
from dormouse_worker.front.requests.caller import Timeouts, caller_name, read_caller

Code = grpc.StatusCode
PROOFS = knows(Role.GATEWAY)


def salted(*salts):
    return tuple((METADATA_CACHE_SALT, salt) for salt in salts)


async def test_the_gateways_salt_reaches_the_engine_and_nobody_elses_does(house):
    await house.collect("hi", metadata=(*proof(Role.GATEWAY), *salted("s" * 128)))
    assert house.engine.engine.received[-1].cache_salt == "s" * 128
    await house.collect("hi", metadata=proof(Role.GATEWAY))
    assert house.engine.engine.received[-1].cache_salt == ""
    refused = await house.refusal(house.generate("hi", metadata=salted("x")).read())
    assert (refused.code(), METADATA_CACHE_SALT in refused.details()) == (Code.INVALID_ARGUMENT, True)


def test_a_ticket_that_is_not_for_this_worker_makes_nobody_the_gateway():
    peer = "ipv4:10.0.0.1:5000"
    for proofs in (knows(), knows(Role.OPERATOR), knows(Role.GATEWAY, audience="another-pod")):
        with pytest.raises(CallError, match="a gateway's ticket is not taken") as refused:
            read_caller((*proof(Role.GATEWAY), *salted("x")), proofs, None, peer=peer)
        assert refused.value.code is Code.UNAVAILABLE, "so that the gateway asks another worker"
        assert not read_caller(proof(Role.GATEWAY), proofs, None, peer=peer).is_gateway


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
        read_caller((*proof(Role.GATEWAY), *salted(*salts)), PROOFS, None, peer="ipv4:10.0.0.1:5000")


@pytest.mark.parametrize(
    ("role", "salts", "name"),
    [
        (Role.GATEWAY, ["key"], "key"),
        (Role.GATEWAY, [], "ipv4:10.0.0.1"),
        (None, ["key"], "ipv4:10.0.0.1"),  # whoever may say so takes as many turns as he likes
        (None, [], "ipv4:10.0.0.1"),
    ],
)
def test_callers_are_told_apart_by_their_keys_or_else_by_where_they_are(role, salts, name):
    metadata = (*(proof(role) if role else ()), *salted(*salts))
    assert caller_name(metadata, PROOFS, "ipv4:10.0.0.1:5000") == name


@pytest.mark.parametrize(("role", "name"), [(Role.GATEWAY, "him"), (None, "ipv4:10.0.0.1")])
@pytest.mark.parametrize("salts", [["one"], ["another"], []])
def test_a_caller_is_whom_the_gateway_calls_so_whatever_his_salt_and_nobody_names_himself(role, name, salts):
    salts = salts if role else []
    metadata = (*(proof(role) if role else ()), (METADATA_CALLER, "him"), *salted(*salts))
    assert caller_name(metadata, PROOFS, "ipv4:10.0.0.1:5000") == name
    caller = read_caller(metadata, PROOFS, None, peer="ipv4:10.0.0.1:5000")
    assert (caller.name, caller.cache_salt) == (name, "".join(salts))


@pytest.mark.parametrize(("salts", "name"), [(["key"], "key"), ([], "relay")])
def test_a_carried_call_is_its_keys(salts, name):
    assert read_caller((*proof(Role.GATEWAY), *salted(*salts)), PROOFS, None, peer="relay").name == name


def test_a_worker_has_deadlines_of_its_own():
    timeouts = Timeouts(default_s=10, max_s=100)
    assert timeouts.limit(None).seconds == 10
    assert timeouts.limit(100) is None
    assert timeouts.limit(100.5).seconds == 100


async def test_a_request_without_a_deadline_ends_at_the_default_and_is_freed(open_house):
    async with open_house(default_timeout_s=0.5) as house:
        house.engine.is_paused = True
        while not (added := [m.request_id for m in house.engine.engine.received if isinstance(m, AddRequest)]):
            refused = await house.refusal(house.generate("hi", n=2, timeout=None).read())  # or it ends on its way there
            assert refused.code() is Code.DEADLINE_EXCEEDED
            assert "0.5 s" in refused.details()
            assert "--default-timeout-seconds" in refused.details()
        assert (await house.engine.until_received(lambda m: isinstance(m, AbortRequests))).request_ids == added


async def test_a_longer_deadline_is_cut_to_the_longest_allowed(open_house):
    async with open_house(max_timeout_s=0.02) as house:
        house.engine.is_paused = True
        refused = await house.refusal(house.generate("hi", timeout=500).read())
        assert refused.code() is Code.DEADLINE_EXCEEDED
        assert "--max-timeout-seconds" in refused.details()
        assert len(house.front.worker.requests) == 0
