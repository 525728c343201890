"""A GpuPool becomes a noun; what the schema should have refused is an error with field, value and limit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dormouse_operator.model import Key
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pools import PoolPolicy, Slot, SlotPhase
from dormouse_operator.parse import SpecError, parse_pool

DEVICE = {"claim": {"deviceClassName": "gpu.nvidia.com"}}
METADATA = {"namespace": "team", "name": "shared", "uid": "u1", "generation": 3}


def pool(status=None, **spec):
    body = {"slots": 2, "device": DEVICE, **spec}
    return parse_pool({"metadata": METADATA, "spec": body, **({"status": status} if status else {})})


def test_what_the_spec_leaves_out_is_the_arbiter_s_default():
    parsed = pool()
    assert (parsed.key, parsed.uid, parsed.generation) == (Key("team", "shared"), "u1", 3)
    assert (parsed.num_slots, parsed.gpus_per_slot, parsed.policy) == (2, 1, PoolPolicy())
    assert parsed.device == PoolDevice("gpu.nvidia.com")
    assert not parsed.is_deleting
    assert parsed.slot_names == ("shared-0", "shared-1")
    assert (parsed.slots, parsed.waiting, parsed.conditions, parsed.raw) == ((), {}, {}, {})


def test_what_the_spec_says_is_taken():
    selectors = [{"cel": {"expression": "device.capacity['x'].memory.compareTo(quantity('80Gi')) >= 0"}}]
    parsed = pool(
        slots=4,
        gpusPerSlot=2,
        device={"claim": {"deviceClassName": "gpu", "selectors": selectors}},
        awakePerSlot=2,
        maxMembersPerSlot=16,
        sleeperReserve="512Mi",
        policy={"order": "Priority", "minActiveSeconds": 60, "patienceSeconds": 0},
    )
    assert parsed.device.selectors == (selectors[0]["cel"]["expression"],)
    assert (parsed.num_slots, parsed.gpus_per_slot) == (4, 2)
    assert parsed.policy == PoolPolicy(
        order="Priority",
        min_active_s=60,
        patience_s=0,
        awake_per_slot=2,
        max_members_per_slot=16,
        sleeper_reserve_bytes=2**29,
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"slots": None}, r"spec\.slots is missing"),
        ({"slots": 0}, r"spec\.slots is 0; allowed are 1 to 256"),
        ({"slots": 257}, r"spec\.slots is 257; allowed are 1 to 256"),
        ({"gpusPerSlot": 65}, r"spec\.gpusPerSlot is 65; allowed are 1 to 64"),
        ({"device": {}}, r"spec\.device\.claim\.deviceClassName is missing"),
        (
            {"device": {"reservation": {}}},
            r"spec\.device\.reservation\.resourceName is missing",
        ),
        ({"device": {"claim": {**DEVICE["claim"], "selectors": [{}]}}}, r"selectors\[0\]\.cel\.expression is missing"),
        ({"awakePerSlot": 9, "maxMembersPerSlot": 9}, r"spec\.awakePerSlot is 9; allowed are 1 to 8"),
        ({"awakePerSlot": 3, "maxMembersPerSlot": 2}, r"awakePerSlot is 3; the most is spec\.maxMembersPerSlot, 2"),
        ({"maxMembersPerSlot": 257}, r"spec\.maxMembersPerSlot is 257; allowed are 1 to 256"),
        ({"slots": 17, "maxMembersPerSlot": 256}, r"slots 17 x spec\.maxMembersPerSlot 256 = 4352 places.*4096"),
        ({"sleeperReserve": "1GB"}, r"spec\.sleeperReserve is '1GB'"),
        ({"policy": {"order": "Loud"}}, r"spec\.policy\.order is 'Loud'; allowed are Fair and Priority"),
        ({"policy": {"minActiveSeconds": -1}}, r"spec\.policy\.minActiveSeconds is -1; allowed are 0 to 86400"),
        ({"policy": {"patienceSeconds": 3601}}, r"spec\.policy\.patienceSeconds is 3601; allowed are 0 to 3600"),
        ({"releaseAfterSeconds": -1}, r"spec\.releaseAfterSeconds is -1; allowed are 0 to 31622400"),
    ],
)
def test_what_cannot_be_is_refused_by_field_value_and_limit(spec, words):
    with pytest.raises(SpecError, match=words):
        pool(**spec)


def test_a_pool_that_goes_says_so():
    metadata = {**METADATA, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert parse_pool({"metadata": metadata, "spec": {"slots": 1, "device": DEVICE}}).is_deleting


def test_what_was_recorded_is_read_also_of_slots_that_are_no_longer_wanted():
    since = "2026-01-01T12:00:00Z"
    held = {"name": "shared-7", "phase": "Held", "since": since, "holders": [{"replica": "a[0]", "since": since}]}
    condition = {"type": "Starving", "status": "True", "reason": "MemberWaits", "lastTransitionTime": since}
    status = {
        "slots": [{"name": "shared-0", "phase": "Free", "since": since, "epoch": 5}, held, "what", {"phase": "Free"}],
        "waiting": [{"name": "b", "since": since, "wanted": 1}, {"name": "c"}],
        "conditions": [condition],
    }
    parsed = pool(status)
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert parsed.slots[0] == Slot(name="shared-0", since=at, epoch=5)
    assert [(slot.name, slot.phase) for slot in parsed.slots[1:]] == [("shared-7", SlotPhase.HELD)]
    assert parsed.waiting == {"b": at}
    assert parsed.conditions["Starving"].condition.reason == "MemberWaits"
    assert parsed.raw == status


def test_a_list_of_slots_that_is_none_is_no_slot():
    assert pool({"slots": "all"}).slots == ()
