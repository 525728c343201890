"""What `dormouse status` shows of a member of a pool: the pool, each replica's slot and turn, and what it waits for."""

from __future__ import annotations

import json

import pytest

from dormouse_cli.pool_view import read_pool, told_of
from dormouse_kube.api import GPU_POOLS
from dormouse_kube.errors import Forbidden, KubeError, NotFound
from tests.cli import kit
from tests.cli.test_pool import SINCE, pool


def a_member(name="llama"):
    raw = kit.deployment(name, gpu={"pool": {"name": "shared"}})
    raw["metadata"]["generation"] = 1
    return raw


def a_pod(name="llama", replica=0):
    made = kit.pod(name, replica)
    made["metadata"]["labels"] |= {
        "inference.dormouse.dev/pool": "shared",
        "inference.dormouse.dev/slot": f"shared-{replica}",
    }
    made["status"]["conditions"][1]["status"] = "False"
    return made


def a_cluster(*pools, member=None):
    fake = kit.cluster(member or a_member(), pods=(a_pod(),))
    for one in pools:
        fake.put(GPU_POOLS, one)
    return fake


def test_a_member_that_waits_is_shown_with_its_pool_its_slot_and_since_when_it_waits(dormouse):
    first, second, third, *_ = dormouse(a_cluster(pool()), "status").stdout.splitlines()
    assert first.startswith("default/llama  Active  1/1 ready, 2730 blocks of 16 tokens, in pool shared, last")
    assert second.startswith("  waits for a slot of pool shared since ")
    assert third.startswith("  replica 0  llama-fa477b28-0  Asleep, at level 1 on slot shared-0, on node-a")


@pytest.mark.parametrize(
    ("slot", "shown"),
    [
        ({"phase": "Held", "holders": [{"replica": "llama[0]", "since": SINCE}]}, "NotReady, holds slot shared-0,"),
        ({"phase": "Granting", "next": "llama[0]"}, "NotReady, is given slot shared-0,"),
        (
            {"phase": "Yielding", "leaving": "llama[0]", "holders": [{"replica": "llama[0]", "since": SINCE}]},
            "NotReady, leaves slot shared-0,",
        ),
        ({"phase": "Free", "sleepers": [{"replica": "llama[0]", "level": 2}]}, "Asleep, at level 2 on slot shared-0,"),
        ({"phase": "Free", "sleepers": [{"replica": "llama[0]", "level": 3}]}, "Standby, on slot shared-0,"),
        ({"phase": "Free", "sleepers": [{"replica": "llama2[0]", "level": 3}]}, "NotReady, on slot shared-0,"),
        (
            {"phase": "Granting", "next": "llama[0]", "sleepers": [{"replica": "llama[0]", "level": 3}]},
            "NotReady, is given slot shared-0,",
        ),
    ],
    ids=["holds", "rises", "leaves", "level 2", "standby", "another member's", "rises from standby"],
)
def test_a_replica_is_shown_with_its_turn_on_its_slot(dormouse, slot, shown):
    told = pool(slots=[{"name": "shared-0", "since": SINCE, **slot}], waiting=[])
    assert shown in dormouse(a_cluster(told), "status").stdout


def test_replicas_of_one_member_have_turns_of_their_own():
    told = told_of(read_pool(pool()), "qwen")
    assert told.turns == {"0": "Yielding", "1": "Held"}
    assert told.waits_since == ""


@pytest.mark.parametrize("error", [Forbidden("no"), NotFound("no such kind")], ids=["no right", "an older cluster"])
def test_a_pool_that_cannot_be_seen_takes_nothing_else_away(dormouse, error):
    fake = a_cluster(pool())
    fake.fail("get", GPU_POOLS, error)
    result = dormouse(fake, "status")
    assert result.exit_code == 0
    assert "replica 0  llama-fa477b28-0  NotReady, on slot shared-0, on node-a" in result.stdout


def test_an_api_server_that_does_not_answer_is_an_error_as_ever(dormouse):
    fake = a_cluster(pool())
    fake.fail("get", GPU_POOLS, KubeError("the API server is ill"))
    assert dormouse(fake, "status").exit_code != 0


def test_who_is_in_no_pool_asks_for_none(dormouse):
    fake = kit.cluster(kit.deployment(), pods=(kit.pod(),))
    fake.fail("get", GPU_POOLS, KubeError("nobody asks"))
    result = dormouse(fake, "status")
    assert result.exit_code == 0
    assert "pool" not in result.stdout
    assert "slot" not in result.stdout


def test_steps_that_only_an_engine_could_tell_of_do_not_hide_what_is_missing(dormouse):
    member = a_member()
    for step in ("ModelLoaded", "MemoryProfiled"):
        place = next(n for n, one in enumerate(member["status"]["conditions"]) if one["type"] == step)
        member["status"]["conditions"][place] = kit.condition(step, "Unknown", "Standby", "1 of 1 are in STANDBY")
    place = next(n for n, one in enumerate(member["status"]["conditions"]) if one["type"] == "Ready")
    words = "waits for a slot of pool shared: held are shared-0 by qwen[0]"
    member["status"]["conditions"][place] = kit.condition("Ready", "False", "WaitsForSlot", words)
    shown = dormouse(a_cluster(pool(), member=member), "status").stdout
    assert f"  Ready is False: WaitsForSlot: {words}\n  what to do: wait: busy members take turns" in shown


def test_programs_get_slot_turn_and_wait(dormouse):
    (view,) = json.loads(dormouse(a_cluster(pool()), "status", "-o", "json").stdout)
    assert (view["pool"], view["waits_since"]) == ("shared", SINCE)
    assert (view["pods"][0]["slot"], view["pods"][0]["turn"]) == ("shared-0", "Level1")
