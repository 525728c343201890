"""A model that is an image of a registry: what is understood, the volume, what another image takes, what is told."""

from __future__ import annotations

import re

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.manifests import pod_digest_of, revision_of
from dormouse_operator.model import ModelImage, ModelSource
from dormouse_operator.parse import SpecError
from tests.operator_.crds import definition
from tests.operator_.kit import PAIR, followers
from tests.operator_.manifests.test_manifests import deployment, pod

DIGEST = "sha256:" + "0a" * 32
MODEL = {"uri": "oci://registry.example:5000/team/tiny:1"}
KNOWN = [
    "registry.example/tiny:1",
    "registry.example:5000/team/deep/tiny_v1.2--x:Latest_1.0-rc",
    f"registry.example/tiny@{DIGEST}",
    f"registry.example/tiny:1@{DIGEST}",
    "team/tiny:1",
]
UNKNOWN = [
    "",
    "tiny:1",
    "registry.example/tiny",
    "registry.example/tiny:",
    "registry.example/tiny:-1",
    "registry.example/tiny@sha256:0a",
    f"registry.example/tiny@{DIGEST}0",
    "registry.example/Tiny:1",
    "registry.example//tiny:1",
    "registry.example/../tiny:1",
    "registry.example:/tiny:1",
    "-registry.example/tiny:1",
    "registry.example/tiny:1\n",
    "registry.example/tiny:1 x",
    "oci://registry.example/tiny:1",
]


def with_model(**said):
    return deployment(model={**MODEL, **said})


# --- what is understood ---


def test_the_reference_is_the_image_and_the_model_is_at_its_top():
    image = ModelImage("registry.example:5000/team/tiny:1")
    assert with_model().model == ModelSource("/models/image", None, "tiny", None, None, image)


def test_a_path_is_one_within_the_image_and_changes_the_engine_only():
    plain, deeper = with_model(), with_model(path="models/tiny.gguf")
    assert deeper.model.path == "/models/image/models/tiny.gguf"
    assert revision_of(plain, "i") != revision_of(deeper, "i")
    assert pod_digest_of(plain, "i") == pod_digest_of(deeper, "i")


@pytest.mark.parametrize("reference", KNOWN)
def test_tags_and_digests_are_understood(reference):
    assert with_model(uri=f"oci://{reference}").model.image == ModelImage(reference)


@pytest.mark.parametrize("reference", UNKNOWN)
def test_what_names_no_version_or_no_image_is_refused(reference):
    with pytest.raises(SpecError, match=re.escape(f"spec.model.uri is {'oci://' + reference!r}; allowed are")):
        with_model(uri=f"oci://{reference}")


def test_the_schema_understands_the_same_references():
    crd = definition("inferencedeployments")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = crd["properties"]["spec"]["properties"]["model"]["properties"]["uri"]["x-kubernetes-validations"]
    pattern = re.search(r"matches\('\^(.*)\$'\)", rules[0]["rule"])
    assert pattern
    taken = [text for text in (*KNOWN, *UNKNOWN) if re.fullmatch(pattern[1], f"oci://{text}")]
    assert taken == KNOWN


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../b", "a\0b"])
def test_a_path_out_of_the_image_is_refused(path):
    with pytest.raises(SpecError, match=re.escape(f"spec.model.path is {path!r}")):
        with_model(path=path)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({**MODEL, "revision": "main"}, "spec.model.revision is for hf:// only"),
        ({**MODEL, "tokenSecretRef": {"name": "hub"}}, "spec.model.tokenSecretRef is for hf:// only"),
        ({"uri": "pvc://models/tiny", "path": "x"}, "spec.model.path is for oci:// only"),
        ({"uri": "hf://org/tiny", "pullPolicy": "Never"}, "spec.model.pullPolicy is for oci:// only"),
    ],
)
def test_a_field_of_another_source_is_refused_by_name(model, named):
    with pytest.raises(SpecError, match=re.escape(named)):
        deployment(model=model)


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("registry.example:5000/team/tiny:1", "registry.example:5000/team/tiny"),
        (f"registry.example/tiny@{DIGEST}", "registry.example/tiny"),
        (f"registry.example:1/tiny:2@{DIGEST}", "registry.example:1/tiny"),
    ],
)
def test_the_repository_is_the_reference_without_its_version(reference, repository):
    assert ModelImage(reference).repository == repository


# --- the pod ---


def test_the_pod_mounts_the_image_read_only():
    spec = pod(model=MODEL)["spec"]
    (worker,) = spec["containers"]
    assert {"name": "model", "image": {"reference": "registry.example:5000/team/tiny:1"}} in spec["volumes"]
    assert {"name": "model", "mountPath": "/models/image", "readOnly": True} in worker["volumeMounts"]
    assert "--model=/models/image" in worker["args"]
    assert "initContainers" not in spec


def test_a_pull_policy_and_secrets_for_the_pull_reach_the_kubelet():
    template = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    spec = pod(model={**MODEL, "pullPolicy": "Always"}, template=template)["spec"]
    (volume,) = (each["image"] for each in spec["volumes"] if each["name"] == "model")
    assert volume == {"reference": "registry.example:5000/team/tiny:1", "pullPolicy": "Always"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_another_reference_or_policy_takes_another_pod():
    said = ({}, {"uri": "oci://registry.example:5000/team/tiny:2"}, {"pullPolicy": "Always"})
    wanted = [with_model(**each) for each in said]
    assert len({pod_digest_of(each, "i") for each in wanted}) == len({revision_of(each, "i") for each in wanted}) == 3


def test_pods_of_other_sources_keep_the_digests_of_before():
    assert (pod_digest_of(deployment(), "i"), revision_of(deployment(), "i")) == ("4d8b86cb", "392a35c2")


async def test_a_follower_mounts_it_too(rig):
    await started(rig, parallelism=PAIR)
    [name] = followers(rig)
    volumes = rig.kube.peek(PODS, "team", name)["spec"]["volumes"]
    assert {"name": "model", "image": {"reference": "registry.example:5000/team/tiny:1"}} in volumes


# --- what is told ---


def waits(rig, reason, message, index=0):
    """Have the kubelet say why a pod's worker does not run."""

    def edit(obj):
        obj["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": message}}

    rig.kube.edit(PODS, "team", rig.pods[index], edit)


async def started(rig, **spec):
    rig.apply(model=MODEL, **spec)
    await rig.settle()


@pytest.mark.parametrize(
    "message",
    [
        'failed to pull and unpack image "registry.example:5000/team/tiny:1": not found',
        'Back-off pulling image "registry.example:5000/team/tiny:1": ErrImagePull: manifest unknown',
        "reading manifest 1 in registry.example:5000/team/tiny: unauthorized",
    ],
)
async def test_a_model_that_can_not_be_pulled_is_told_as_such(rig, message):
    await started(rig)
    waits(rig, "ErrImagePull", message)
    await rig.reconcile()
    told = message.rpartition("ErrImagePull: ")[2]
    assert rig.condition("ModelLoaded") == ("False", "ModelPullFailed", f"pod {rig.pods[0]}: {told}")
    assert rig.status["phase"] == "Failed"


async def test_a_worker_image_with_a_longer_name_is_not_taken_for_the_model(rig):
    await started(rig)
    waits(rig, "ErrImagePull", 'failed to pull "registry.example:5000/team/tiny-worker:1"')
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "ImagePullFailed"


async def test_a_follower_that_can_not_pull_it_is_told(rig):
    await started(rig, parallelism=PAIR)
    [name] = followers(rig)
    waits(rig, "ImagePullBackOff", 'Back-off pulling image "registry.example:5000/team/tiny:1"', rig.pods.index(name))
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "ModelPullFailed"
    assert name in rig.condition("ModelLoaded")[2]


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError"])
async def test_a_runtime_that_can_not_mount_it_is_told_in_its_words(rig, reason):
    await started(rig)
    waits(rig, reason, 'failed to stat "": no such file')
    await rig.reconcile()
    words = f'pod {rig.pods[0]}: {reason}: failed to stat "": no such file'
    assert rig.condition("ModelLoaded") == ("False", "ImageNotMounted", words)


async def test_the_same_of_a_pod_without_an_image_is_told_as_before(rig):
    rig.apply()
    await rig.settle()
    waits(rig, "CreateContainerError", "words")
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[1] == "ContainerNotStarted"


@pytest.mark.parametrize("left", [[], [{"name": "model", "emptyDir": {}}]], ids=["gate off", "unknown kind"])
async def test_a_volume_that_the_api_server_left_out_is_told(rig, left):
    await started(rig)

    def edit(obj):
        others = [each for each in obj["spec"]["volumes"] if each["name"] != "model"]
        obj["spec"]["volumes"] = others + left

    rig.kube.edit(PODS, "team", rig.pods[0], edit)
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[:2] == ("False", "ImageVolumesOff")
    assert rig.pods[0] in rig.condition("ModelLoaded")[2]


async def test_a_deployment_serves_from_an_image_and_another_tag_is_rolled_out(rig):
    await rig.serving(model=MODEL)
    assert rig.status["phase"] == "Active"
    before = list(rig.pods)
    await rig.serving(model={"uri": "oci://registry.example:5000/team/tiny:2"})
    assert not set(before) & set(rig.pods)
    assert rig.condition("ModelLoaded")[1] == "Loaded"
