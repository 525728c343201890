"""`dormouse adapters`: which adapters deployments have, where each is, and why one is missing."""

from __future__ import annotations

import json

import pytest

from dormouse_cli.adapter_view import read_adapters
from dormouse_kube.api import INFERENCE_ADAPTERS
from tests.cli import kit

SQL = {"name": "sql", "uri": "pvc://loras/sql", "pin": True}
HR = {"name": "hr", "uri": "file:///loras/hr"}
TOLD = [
    {"name": "hr", "uri": HR["uri"], "state": "Failed", "message": "a: no such directory", "replicas": 2},
    {
        "name": "sql",
        "uri": SQL["uri"],
        "state": "Loaded",
        "digest": "ab" * 32,
        "rank": 8,
        "slotBytes": 3 << 20,
        "loadedReplicas": 2,
        "replicas": 2,
    },
]


def adapted(name="tiny", namespace="default", told=TOLD):
    made = kit.deployment(name, namespace, adapters=[SQL, HR])
    made["status"]["adapters"] = told
    return made


def test_adapters_are_lines_below_their_deployment_and_what_is_missing_below_them(dormouse):
    fake = kit.cluster(adapted(), kit.deployment("plain"), adapted("other", "team"))
    assert dormouse(fake, "adapters").stdout.splitlines() == [
        "default/tiny  2 adapters",
        "  hr  Failed, 0/2 loaded, file:///loras/hr",
        "    a: no such directory",
        "  sql  Loaded, 2/2 loaded, rank 8, 3 MiB a slot, pinned, sha256 abababababab, pvc://loras/sql",
    ]
    assert "team/other  2 adapters" in dormouse(fake, "adapters", "-A").stdout


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"kind": "LoRA"}, "rank 8, 3 MiB a slot"),
        ({"kind": "ActivatedLoRA"}, "activated, rank 8, 3 MiB a slot"),
        ({"kind": "SoftPrompt", "rank": 0, "virtualTokens": 6}, "soft prompt, 6 virtual tokens, 3 MiB a slot"),
        ({"kind": "Later"}, "Later, rank 8, 3 MiB a slot"),
    ],
    ids=str,
)
def test_what_is_no_plain_lora_says_so(dormouse, told, words):
    shown = dormouse(kit.cluster(adapted(told=[{**TOLD[1], **told}])), "adapters", "tiny").stdout
    assert f"2/2 loaded, {words}, pinned" in shown


def test_an_adapter_that_the_operator_has_not_seen_says_so(dormouse):
    shown = dormouse(kit.cluster(adapted(told=None)), "adapters", "tiny").stdout.splitlines()
    assert shown[1:3] == ["  hr  Unseen, 0/0 loaded, file:///loras/hr", "    the operator has not looked yet"]


def test_programs_get_every_field(dormouse):
    (hr, sql) = json.loads(dormouse(kit.cluster(adapted()), "adapters", "-o", "json").stdout)
    assert (hr["state"], hr["message"]) == ("Failed", "a: no such directory")
    assert (sql["digest"], sql["slot_bytes"], sql["is_pinned"], sql["deployment"]) == ("ab" * 32, 3 << 20, True, "tiny")


def an_offer(name, state="Refused", base="tiny", namespace="default"):
    condition = {"type": "Resolved", "status": "False", "reason": "NoAdapterPlace", "message": "tiny has 2 adapters"}
    status = {"state": state, "name": name, "conditions": [condition]} if state else {}
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"base": base, "uri": f"pvc://loras/{name}"}, "status": status}


def with_offers(fake, *offers):
    for offer in offers:
        fake.put(INFERENCE_ADAPTERS, offer)
    return fake


def test_what_a_base_refuses_and_what_has_no_base_is_shown_beside_the_others(dormouse):
    offers = an_offer("hr-2"), an_offer("sql", state="Loaded"), an_offer("lost", state="", base="gone")
    shown = dormouse(with_offers(kit.cluster(adapted()), *offers), "adapters").stdout.splitlines()
    assert shown[0] == "default/tiny  3 adapters"
    assert shown[4:] == [
        "  hr-2  Refused, 0/0 loaded, pvc://loras/hr-2, by InferenceAdapter hr-2",
        "    tiny has 2 adapters",
        "default/gone  1 adapter",
        "  lost  Unseen, 0/0 loaded, pvc://loras/lost, by InferenceAdapter lost",
        "    the operator has not looked yet",
    ]


def test_doctor_tells_of_an_inferenceadapter_that_is_refused(dormouse):
    shown = json.loads(
        dormouse(with_offers(kit.cluster(adapted(told=[])), an_offer("hr-2")), "doctor", "-o", "json").stdout
    )
    (found,) = [one for one in shown if "InferenceAdapter" in one["words"]]
    assert found["words"] == "InferenceAdapter hr-2 is not served: tiny has 2 adapters"


def test_where_there_is_none_a_remark_says_so(dormouse):
    fake = kit.cluster(kit.deployment("plain"))
    assert "there is no adapter in the namespace default" in dormouse(fake, "adapters").stderr
    assert "there is no adapter of plain in the namespace default" in dormouse(fake, "adapters", "plain").stderr


def test_an_adapter_that_is_leaving_is_shown_until_the_status_forgets_it():
    raw = adapted()
    raw["spec"]["adapters"] = []
    assert [view.name for view in read_adapters(raw)] == ["hr", "sql"]


def test_doctor_tells_of_an_adapter_that_is_missing(dormouse):
    shown = json.loads(dormouse(kit.cluster(adapted()), "doctor", "-o", "json").stdout)
    (found,) = [one for one in shown if "adapter" in one["words"]]
    assert (found["about"], found["words"]) == ("default/tiny", "the adapter hr: a: no such directory")
    assert "mend its files" in found["remedy"]
