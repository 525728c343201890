"""The schema of GpuPool: what it says of itself, and what a real API server refuses because of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dormouse_kube.api import Kind
from dormouse_kube.errors import Invalid, KubeError
from dormouse_operator.model import Key
from dormouse_operator.model.pools import Holding, PoolPolicy, Refusal, Replica, Sleeper, Slot, SlotPhase, WayOut
from dormouse_operator.parse import parse_pool, write_slot
from dormouse_operator.parse.pool import LONGEST_S, MOST_AWAKE, MOST_MEMBERS, MOST_SLOTS
from tests.operator_.crds import definition, loose, nodes, served_kind

CRD = definition("gpupools")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC, STATUS = (SCHEMA["properties"][part]["properties"] for part in ("spec", "status"))
SLOT = STATUS["slots"]["items"]["properties"]


def test_every_field_is_described_and_bounded_and_no_unknown_one_is_kept():
    assert [path for path, node in nodes(SCHEMA) if not node.get("description") and path != ".metadata"] == []
    assert [path for path, node in nodes(SCHEMA) if "x-kubernetes-preserve-unknown-fields" in node] == []
    typeless = [path for path, node in nodes(SCHEMA) if "type" not in node and "x-kubernetes-int-or-string" not in node]
    assert typeless == []
    assert loose(SCHEMA["properties"]["spec"]) == []


def test_users_see_slots_holders_and_who_waits():
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert [name.upper() for name in shown] == ["SLOTS", "HELD", "WAITING", "AGE"]
    assert VERSION["subresources"] == {"status": {}}
    assert CRD["spec"]["names"]["shortNames"] == ["gpool"]


def test_the_schema_knows_what_the_operator_writes_and_no_more():
    a, b = Replica(Key("team", "a"), 0), Replica(Key("team", "b"), 0)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    slot = Slot(
        name="p-0",
        since=now,
        phase=SlotPhase.YIELDING,
        holders=(Holding(a, now),),
        leaving=a,
        next=b,
        deepening=(b,),
        refusals=(Refusal(replica=b, times=1, at=now, reason="WakeFailed", missing_bytes=1),),
        sleepers=(Sleeper(replica=b, level=1, residual_bytes=1),),
    )
    written = write_slot(slot, node="n", devices=("d/n/0",))
    assert written.keys() == SLOT.keys()
    for name in ("holders", "refusals", "sleepers"):
        assert written[name][0].keys() == SLOT[name]["items"]["properties"].keys()
    assert SLOT["phase"]["enum"] == list(SlotPhase)
    assert SLOT["wayOut"]["enum"] == list(WayOut)


def test_defaults_and_limits_are_those_of_the_operator():
    policy = SPEC["policy"]["properties"]
    default = PoolPolicy()
    assert policy["order"]["default"] == default.order
    assert policy["minActiveSeconds"]["default"] == default.min_active_s
    assert policy["patienceSeconds"]["default"] == default.patience_s
    assert SPEC["awakePerSlot"]["default"] == default.awake_per_slot
    assert SPEC["maxMembersPerSlot"]["default"] == default.max_members_per_slot
    assert SPEC["sleeperReserve"]["default"] == "1Gi"
    assert default.sleeper_reserve_bytes == 2**30
    most = [SPEC[name]["maximum"] for name in ("slots", "awakePerSlot", "maxMembersPerSlot", "releaseAfterSeconds")]
    assert most == [MOST_SLOTS, MOST_AWAKE, MOST_MEMBERS, LONGEST_S]
    assert SPEC["releaseAfterSeconds"]["default"] == 0


# --- on a real API server, under a group of the test's own ---


@pytest.fixture
async def served(cluster):
    """A client, and the kind as the server knows it."""
    async with served_kind(cluster, CRD) as (client, kind):
        yield client, kind


DEVICE = {"claim": {"deviceClassName": "gpu.nvidia.com"}}


def manifest(kind: Kind, name: str = "shared", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    body = {"slots": 2, "device": DEVICE, **spec}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": body}


REFUSED = [
    ({"slots": 0}, ["spec.slots", "0", "1"]),
    ({"slots": 257}, ["spec.slots", "257", "256"]),
    ({"gpusPerSlot": 0}, ["spec.gpusPerSlot", "0", "1"]),
    ({"device": {}}, ["spec.device needs one of claim and reservation"]),
    (
        {"device": {**DEVICE, "reservation": {"resourceName": "x/y"}}},
        ["spec.device needs one of claim and reservation"],
    ),
    ({"device": {"claim": {"deviceClassName": "A b"}}}, ["spec.device.claim.deviceClassName", "A b"]),
    (
        {"device": {"claim": {**DEVICE["claim"], "selectors": [{"cel": {}}]}}},
        ["selectors[0].cel.expression", "Required"],
    ),
    ({"awakePerSlot": 9}, ["spec.awakePerSlot", "9", "8"]),
    ({"awakePerSlot": 3, "maxMembersPerSlot": 2}, ["spec.awakePerSlot is 3", "spec.maxMembersPerSlot, 2"]),
    ({"maxMembersPerSlot": 257}, ["spec.maxMembersPerSlot", "257", "256"]),
    ({"slots": 17, "maxMembersPerSlot": 256}, ["spec.slots 17", "maxMembersPerSlot 256 = 4352", "4096"]),
    ({"sleeperReserve": "1GB"}, ["spec.sleeperReserve", "1GB"]),
    ({"policy": {"order": "Loud"}}, ["spec.policy.order", "Loud", "Priority"]),
    ({"policy": {"minActiveSeconds": -1}}, ["spec.policy.minActiveSeconds", "-1", "0"]),
    ({"policy": {"patienceSeconds": 3601}}, ["spec.policy.patienceSeconds", "3601", "3600"]),
    ({"policy": {"drainSeconds": 1}}, ["unknown field", "spec.policy.drainSeconds"]),
    ({"releaseAfterSeconds": -1}, ["spec.releaseAfterSeconds", "-1", "0"]),
    ({"releaseAfterSeconds": 31622401}, ["spec.releaseAfterSeconds", "31622401", "31622400"]),
]


@pytest.mark.cluster
async def test_the_server_refuses_bad_values_with_field_value_and_limit(served):
    client, kind = served
    quiet = []
    for spec, named in REFUSED:
        try:
            await client.create(kind, manifest(kind, **spec))
        except Invalid as error:
            missing = [word for word in named if word not in str(error)]
            quiet += [(spec, missing, str(error))] if missing else []
        else:
            quiet.append((spec, ["was accepted"], ""))
            await client.delete(kind, "default", "shared")
    assert quiet == []


@pytest.mark.cluster
async def test_what_claims_cannot_change_is_not_changed_and_slots_are(served):
    client, kind = served
    made = await client.create(kind, manifest(kind))
    policy = {"order": "Fair", "minActiveSeconds": 20, "patienceSeconds": 2}
    rest = {"gpusPerSlot": 1, "awakePerSlot": 1, "maxMembersPerSlot": 8, "sleeperReserve": "1Gi", "policy": policy}
    assert made["spec"] == {"slots": 2, "device": DEVICE, "releaseAfterSeconds": 0, **rest}
    changed = await client.apply(kind, manifest(kind, slots=1), field_manager="people")
    assert parse_pool(changed).num_slots == 1
    for field, value in (("gpusPerSlot", 2), ("device", {"claim": {"deviceClassName": "other"}})):
        with pytest.raises(KubeError, match=f"spec.{field} cannot be changed.*another GpuPool"):
            await client.apply(kind, manifest(kind, **{field: value}), field_manager="people")


@pytest.mark.cluster
async def test_the_server_keeps_a_slot_as_it_was_written(served):
    client, kind = served
    await client.create(kind, manifest(kind))
    a, b = Replica(Key("default", "a"), 0), Replica(Key("default", "b"), 1)
    since = datetime(2026, 1, 1, 12, 0, 0, 250000, tzinfo=UTC)
    slot = Slot(
        name="shared-0",
        since=since,
        phase=SlotPhase.YIELDING,
        holders=(Holding(a, since),),
        leaving=a,
        next=b,
        epoch=2**40,
    )
    await client.patch_status(kind, "default", "shared", {"slots": [write_slot(slot, node="n")], "waitingMembers": 1})
    stored = await client.get(kind, "default", "shared")
    assert parse_pool(stored).slots == (slot,)


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "named"), [("n" * 41, "40"), ("a.b", "a-z"), ("7b", "a-z")])
async def test_the_server_refuses_names_that_claims_and_labels_can_not_carry(served, name, named):
    client, kind = served
    with pytest.raises(KubeError, match=named):
        await client.create(kind, manifest(kind, name))
