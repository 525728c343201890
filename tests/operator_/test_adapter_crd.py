"""The schema of InferenceAdapter: what it says of itself, and what a real API server refuses because of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dormouse_kube.api import Kind
from dormouse_kube.errors import Invalid, KubeError
from dormouse_operator.decide.offered_adapters import look
from dormouse_operator.model import AdaptersKey, Engine, RecordedStatus
from dormouse_operator.model.adapters import RecordedAdapter
from dormouse_operator.parse import parse_offer
from dormouse_operator.testing.nouns import a_deployment
from tests.operator_.crds import definition, loose, nodes, served_kind

CRD = definition("inferenceadapters")
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
LISTED = definition("inferencedeployments")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_every_field_is_described_and_bounded_and_no_unknown_one_is_kept():
    assert [path for path, node in nodes(SCHEMA) if not node.get("description") and path != ".metadata"] == []
    assert [path for path, node in nodes(SCHEMA) if "x-kubernetes-preserve-unknown-fields" in node] == []
    assert loose(SCHEMA["properties"]["spec"]) == []


def test_users_see_base_state_and_how_many_replicas_have_it():
    shown = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert [name.upper() for name in shown] == ["BASE", "STATE", "LOADED", "OF", "AGE"]
    assert VERSION["subresources"] == {"status": {}}
    assert CRD["spec"]["names"]["shortNames"] == ["infa"]


def test_what_both_resources_say_of_an_adapter_is_bounded_alike():
    listed, offered = (
        LISTED["properties"]["adapters"]["items"]["properties"],
        SCHEMA["properties"]["spec"]["properties"],
    )
    for name in ("name", "digest", "pin"):
        assert {**offered[name], "description": ""} == {**listed[name], "description": ""}
    rules = [each["rule"] for each in offered["uri"]["x-kubernetes-validations"]]
    assert rules == [each["rule"] for each in listed["uri"]["x-kubernetes-validations"]]


def test_the_schema_knows_what_the_operator_writes_and_no_more():
    loaded = {"digest": "d", "kind": "LoRA", "rank": 8, "virtual_tokens": 1, "slot_bytes": 1}
    told = RecordedAdapter(name="a", uri="file:///a", state="Loaded", resource="a", **loaded)
    base = a_deployment(engine=Engine(enable_lora=True), recorded=RecordedStatus(adapters=(told,)))
    metadata = {"namespace": "team", "name": "a", "uid": "u", "resourceVersion": "1"}
    offer = parse_offer({"metadata": metadata, "spec": {"base": "tiny", "uri": "file:///a"}})
    (found,) = look(AdaptersKey("team", "tiny"), base, [offer], datetime(2026, 1, 1, tzinfo=UTC))
    known = SCHEMA["properties"]["status"]["properties"]
    assert found.status.keys() == known.keys()
    assert found.status["conditions"][0].keys() == known["conditions"]["items"]["properties"].keys()


# --- on a real API server, under a group of the test's own ---


@pytest.fixture
async def served(cluster):
    """A client, and the kind as the server knows it."""
    async with served_kind(cluster, CRD) as (client, kind):
        yield client, kind


def manifest(kind: Kind, **spec: Any) -> dict[str, Any]:
    body = {"base": "tiny", "uri": "pvc://loras/sql", **spec}
    metadata = {"name": "sql", "namespace": "default"}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": body}


REFUSED = [
    ({"base": ""}, ["spec.base"]),
    ({"base": "a/b"}, ["spec.base", "a/b"]),
    ({"name": "a b"}, ["spec.name", "a b"]),
    ({"uri": "hf://a"}, ["spec.uri is hf://a; allowed are hf://ORG/NAME"]),
    ({"uri": "pvc://c/../x"}, ["spec.uri is pvc://c/../x", "must not hold .."]),
    ({"digest": "AB"}, ["spec.digest", "AB"]),
    ({"rank": 8}, ["unknown field", "spec.rank"]),
]


@pytest.mark.cluster
async def test_the_server_refuses_bad_values_with_field_and_value(served):
    client, kind = served
    for spec, named in REFUSED:
        with pytest.raises(Invalid) as refusal:
            await client.create(kind, manifest(kind, **spec))
        assert [word for word in named if word not in str(refusal.value)] == []


@pytest.mark.cluster
async def test_the_base_is_not_changed_and_all_else_is(served):
    client, kind = served
    await client.create(kind, manifest(kind))
    await client.apply(kind, manifest(kind, uri="file:///x", pin=True), field_manager="people")
    with pytest.raises(KubeError, match=r"spec\.base cannot be changed; make another InferenceAdapter"):
        await client.apply(kind, manifest(kind, base="other"), field_manager="people")
