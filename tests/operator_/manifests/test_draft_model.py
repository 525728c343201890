"""spec.engine.speculation.model becomes a flag, and a volume and a mount where it lies in a claim."""

from __future__ import annotations

import pytest

from dormouse_operator.manifests import pod_digest_of, revision_of, worker_arguments
from dormouse_operator.parse.values import SpecError
from tests.operator_.manifests.test_manifests import deployment, pod

MOUNT = {"name": "draft-model", "mountPath": "/drafts/models", "readOnly": True}


def drafting(uri):
    return {"engine": {"speculation": {"method": "draft", "model": uri}}}


def test_a_claim_is_mounted_read_only_also_where_the_model_lies_in_it_too():
    spec = pod(**drafting("pvc://models/small"))["spec"]
    assert {"name": "draft-model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in spec[
        "volumes"
    ]
    assert MOUNT in spec["containers"][0]["volumeMounts"]
    assert "--speculation-model=/drafts/models/small" in spec["containers"][0]["args"]


def test_a_path_of_the_container_is_left_as_it_is():
    spec = pod(**drafting("file:///opt/small"))["spec"]
    assert "draft-model" not in {volume["name"] for volume in spec["volumes"]}
    assert "--speculation-model=/opt/small" in worker_arguments(deployment(**drafting("file:///opt/small")))


def test_another_claim_takes_another_pod_and_another_path_another_engine():
    uris = ("pvc://models/small", "pvc://models/other", "pvc://drafts/small")
    one, path, claim = (deployment(**drafting(uri)) for uri in uris)
    digests = {pod_digest_of(each, "i") for each in (one, path)}
    assert len(digests) == 1
    assert pod_digest_of(claim, "i") not in digests
    assert len({revision_of(each, "i") for each in (one, path, claim, deployment())}) == 4


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://org/name", "draft models of a hub are not fetched: put them into a claim"),
        ("pvc://", "allowed are pvc://CLAIM/PATH and file:///PATH"),
        ("pvc://a/../b", "must not hold .."),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(uri, words):
    with pytest.raises(SpecError) as refused:
        deployment(**drafting(uri))
    assert f"spec.engine.speculation.model is '{uri}'" in str(refused.value)
    assert words in str(refused.value)
