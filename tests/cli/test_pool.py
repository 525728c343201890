"""`dormouse pool`: the tree of a pool for people and for programs, and what asks for somebody."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from dormouse_cli.lines import Line
from dormouse_cli.pool_lines import pool_tree, summary
from dormouse_cli.pool_view import read_pool
from dormouse_kube.api import GPU_POOLS
from dormouse_kube.errors import Forbidden, NotFound
from tests.cli import kit

NOW = datetime(2026, 11, 21, 21, 42, 12, tzinfo=UTC)
SINCE = "2026-11-21T21:42:00.250000Z"
DEVICE = "gpu.example.com/node-a/gpu-0"


def pool(name="shared", namespace="default", spec=None, **status):
    """Return a pool whose operator has looked: one slot is handed on, one is held, one is free."""
    handed_on = {
        "name": f"{name}-0",
        "phase": "Yielding",
        "since": SINCE,
        "epoch": 7,
        "node": "node-a",
        "devices": [DEVICE],
        "holders": [{"replica": "qwen[0]", "since": kit.TIME}],
        "leaving": "qwen[0]",
        "next": "llama[0]",
        "wayOut": "Level2",
        "sleepers": [
            {"replica": "llama[0]", "level": 1, "residualBytes": 2**29},
            {"replica": "phi[0]", "level": 3},
        ],
        "refusals": [
            {"replica": "phi[0]", "times": 2, "at": kit.TIME, "reason": "SlotTooSmall", "missingBytes": 2**31}
        ],
    }
    held = {"name": f"{name}-1", "phase": "Held", "since": SINCE, "epoch": 3, "node": "node-a"}
    held |= {"holders": [{"replica": "qwen[1]", "since": kit.TIME}]}
    free = {"name": f"{name}-2", "phase": "Free", "since": SINCE}
    told = {
        "observedGeneration": 1,
        "members": 3,
        "heldSlots": 1,
        "waitingMembers": 1,
        "slots": [handed_on, held, free],
        "waiting": [{"name": "llama", "since": SINCE, "wanted": 1}],
        "conditions": [
            kit.condition("Allocated", "True", "Allocated", "2 of 3 slots have pods, and each of these its devices"),
            kit.condition("Fouled", "False", "AsExpected", "every slot can be given"),
            kit.condition("Starving", "False", "AsExpected", "no member has waited 120 s for a slot"),
        ],
    }
    metadata = {"name": name, "namespace": namespace, "generation": 1}
    return {"metadata": metadata, "spec": {"slots": 3, **(spec or {})}, "status": {**told, **status}}


def cluster(*pools):
    fake = kit.cluster()
    for one in pools:
        fake.put(GPU_POOLS, one)
    return fake


def text(lines: list[Line]) -> list[str]:
    return ["  " * line.depth + line.text for line in lines]


def test_a_pool_is_a_tree_of_slots_with_who_is_there_who_is_next_and_who_waits():
    assert text(pool_tree(read_pool(pool()), NOW)) == [
        "default/shared  3 slots, 1 held, 3 members, 1 waiting",
        f"  slot shared-0  Yielding, qwen[0] leaves by Level2 since 12 s ago, next is llama[0], on node-a, {DEVICE}",
        "    llama[0]  asleep at level 1, still holds 512 MiB, is next",
        "    phi[0]  in standby",
        "    phi[0] did not come to serve 2 times, last 4 min ago: SlotTooSmall, 2 GiB of device memory were missing",
        "  slot shared-1  Held, qwen[1] since 4 min ago, on node-a",
        "  slot shared-2  Free, no device yet",
        "  waiting: llama since 12 s ago, wants 1 awake",
        "  Allocated is True: Allocated: 2 of 3 slots have pods, and each of these its devices",
        "  Fouled is False: AsExpected: every slot can be given",
        "  Starving is False: AsExpected: no member has waited 120 s for a slot",
    ]


def test_sleepers_that_go_deeper_for_the_next_are_named():
    granting = {"name": "shared-0", "phase": "Granting", "since": SINCE, "next": "a[0]", "deepening": ["b[0]", "c[1]"]}
    shown = text(pool_tree(read_pool(pool(slots=[granting])), NOW))
    assert "b[0] and c[1] go to standby for it" in shown[1]


def test_a_pool_whose_gpus_are_the_clusters_says_released():
    raw = pool(heldSlots=0, waiting=[], releasedSince=SINCE)
    assert text(summary(read_pool(raw))) == ["default/shared  3 slots, released, 0 held, 3 members"]


def test_slots_of_several_gpus_say_so():
    assert text(summary(read_pool(pool(spec={"gpusPerSlot": 2}))))[0].startswith("default/shared  3 slots of 2 GPUs, ")


@pytest.mark.parametrize(
    ("type_", "status", "reason", "remedy"),
    [
        ("Starving", "True", "MemberStarves", "raise spec.slots"),
        ("Fouled", "True", "SlotFouled", "see the pod"),
        ("Allocated", "False", "WaitingForDevices", "the message ends with the scheduler's words: add GPUs"),
    ],
)
def test_what_asks_for_somebody_stands_in_the_short_form_too_with_what_to_do(type_, status, reason, remedy):
    raw = pool(conditions=[kit.condition(type_, status, reason, "a: nothing awake")])
    for lines in (summary(read_pool(raw)), pool_tree(read_pool(raw), NOW)):
        *_, problem, cure = lines
        assert (problem.text, problem.style) == (f"{type_} is {status}: {reason}: a: nothing awake", "yellow")
        assert cure.text.startswith(f"what to do: {remedy}")


def test_a_pool_that_nobody_looked_at_yet_says_so():
    raw = pool()
    del raw["status"]
    assert text(pool_tree(read_pool(raw), NOW)) == [
        "default/shared  3 slots",
        "  the status is older than the spec: the operator has not looked yet",
    ]


def test_without_a_name_each_pool_is_a_line(dormouse):
    fake = cluster(pool("a"), pool("b"), pool("c", "team"))
    assert dormouse(fake, "pool").stdout.splitlines() == [
        "default/a  3 slots, 1 held, 3 members, 1 waiting",
        "default/b  3 slots, 1 held, 3 members, 1 waiting",
    ]
    assert dormouse(fake, "pool", "-A").stdout.count("\n") == 3


def test_a_pool_by_name_is_shown_whole(dormouse):
    shown = dormouse(cluster(pool()), "pool", "shared").stdout
    assert "  slot shared-1  Held, qwen[1] since " in shown


def test_for_programs_a_pool_is_json(dormouse):
    (found,) = json.loads(dormouse(cluster(pool()), "pool", "shared", "-o", "json").stdout)
    assert (found["name"], found["num_slots"], found["held"], found["members"]) == ("shared", 3, 1, 3)
    first = found["slots"][0]
    assert (first["leaving"], first["next"], first["way_out"], first["epoch"]) == ("qwen[0]", "llama[0]", "Level2", 7)
    assert first["sleepers"][0] == {"replica": "llama[0]", "level": 1, "residual_bytes": 2**29}
    assert found["waiting"] == [{"name": "llama", "since": SINCE, "wanted": 1}]
    assert [one["type"] for one in found["conditions"]] == ["Allocated", "Fouled", "Starving"]


def test_an_unknown_pool_suggests_names_that_are_near_and_an_empty_namespace_is_no_error(dormouse):
    result = dormouse(cluster(pool()), "pool", "sharred")
    assert result.exit_code == 5
    assert result.stderr == "error: there is no GpuPool sharred in the namespace default; did you mean shared?\n"
    result = dormouse(cluster(), "pool")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "there is no GpuPool in the namespace default" in result.stderr
    assert "there is no GpuPool in any namespace" in dormouse(cluster(), "pool", "-A").stderr


def findings(dormouse, fake):
    """Return what `doctor` says of pools, in a cluster where nothing is installed."""
    shown = dormouse(fake, "doctor", "-o", "json").stdout
    return [
        (one["level"], one["words"], one["remedy"]) for one in json.loads(shown) if one["about"] == "default/shared"
    ]


def test_doctor_tells_how_a_pool_is(dormouse):
    assert findings(dormouse, cluster(pool())) == [("ok", "1 of 3 slots are held, 1 members wait", "")]


def test_doctor_tells_what_is_wrong_with_a_pool_and_what_to_do(dormouse):
    raw = pool(conditions=[kit.condition("Fouled", "True", "SlotFouled", "slot shared-0: the pod cannot be ended")])
    ((level, words, remedy),) = findings(dormouse, cluster(raw))
    assert (level, words) == ("problem", "Fouled is True: SlotFouled: slot shared-0: the pod cannot be ended")
    assert remedy.startswith("see the pod")


def test_doctor_tells_that_no_operator_has_looked_at_a_pool(dormouse):
    raw = pool()
    del raw["status"]
    assert [(level, words) for level, words, _ in findings(dormouse, cluster(raw))] == [
        ("problem", "no operator has looked at it")
    ]


@pytest.mark.parametrize("error", [Forbidden("no"), NotFound("no such kind")], ids=["no right", "no such kind"])
def test_doctor_says_nothing_of_pools_that_it_may_not_see_or_that_there_cannot_be(dormouse, error):
    fake = cluster(pool())
    fake.fail("list", GPU_POOLS, error)
    assert findings(dormouse, fake) == []
