"""A model of a hub: the container that downloads it, the volume that keeps it, and how the user hears of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_kube.api import CLAIMS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden
from dormouse_operator.manifests import WorkerDefaults, claim_manifest, claim_name, pod_manifest
from dormouse_operator.manifests.revision import pod_digest_of, revision_of
from dormouse_operator.model import Download, Hub, ModelSource, SecretKey
from dormouse_operator.model.units import GIB
from dormouse_operator.parse import SpecError, parse_deployment
from dormouse_operator.testing.fake_worker import FakeWorker
from tests.operator_.kit import PAIR, followers

MODEL = {"uri": "hf://org/Tiny-1.5"}


def deployment(**spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1"}
    return parse_deployment({"metadata": metadata, "spec": {"model": MODEL, "engine": {"device": "cpu"}, **spec}})


def pod(**spec):
    return pod_manifest(deployment(**spec), image="worker:1", index=0, defaults=WorkerDefaults("Always", "a", "b"))[
        "spec"
    ]


def test_a_hub_model_lies_in_the_cache_by_repository_and_revision():
    parsed = deployment(
        model={**MODEL, "revision": "refs/pr/1", "tokenSecretRef": {"name": "hub"}, "size": "3Gi"},
        cache={"claimName": "shared"},
    ).model
    hub = Hub(repo="org/Tiny-1.5", revision="refs/pr/1", token=SecretKey("hub", "token"), claim="shared")
    assert parsed == ModelSource("/models/cache/org/Tiny-1.5/refs--pr--1", None, "tiny", hub, 3 << 30)


def test_a_gguf_file_has_a_directory_of_its_own_and_is_named_to_the_downloader():
    assert deployment(model={"uri": "hf://org/Tiny:Q4_K_M"}).model.path == "/models/cache/org/Tiny/main:Q4_K_M"
    args = pod(model={"uri": "hf://org/Tiny:Q4_K_M"})["initContainers"][0]["args"]
    assert args[-2:] == ["--directory=/models/cache/org/Tiny/main:Q4_K_M", "--file=Q4_K_M"]


def test_a_file_changes_the_pod_and_none_changes_nothing_of_before():
    plain, named = deployment(), deployment(model={"uri": "hf://org/Tiny-1.5:Q4_K_M"})
    assert revision_of(plain, "i") != revision_of(named, "i")
    assert pod_digest_of(plain, "i") == "4397bfd5"  # of the release before


@pytest.mark.parametrize("uri", ["hf://", "hf://a", "hf:///a", "hf://a/", "hf://a/b/c"])
def test_a_repository_has_an_organisation_and_a_name(uri):
    with pytest.raises(SpecError, match="hf://ORG/NAME"):
        deployment(model={"uri": uri})


def test_only_the_downloader_writes_to_the_cache_and_sees_the_token():
    spec = pod(model={**MODEL, "tokenSecretRef": {"name": "hub", "key": "t"}}, cache={"claimName": "shared"})
    (downloader,), (worker,) = spec["initContainers"], spec["containers"]
    assert {"name": "cache", "mountPath": "/models/cache"} in downloader["volumeMounts"]
    assert {"name": "cache", "mountPath": "/models/cache", "readOnly": True} in worker["volumeMounts"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}
    assert token in downloader["env"]
    assert "HF_TOKEN" not in str(worker)
    assert spec["volumes"][-1] == {"name": "cache", "persistentVolumeClaim": {"claimName": "shared"}}


def test_the_downloader_is_the_workers_image_and_as_restricted():
    spec = pod()
    (downloader,), (worker,) = spec["initContainers"], spec["containers"]
    for name in ("image", "imagePullPolicy", "securityContext"):
        assert downloader[name] == worker[name]
    assert downloader["command"] == ["python", "-m", "dormouse_worker.download"]
    assert downloader["args"] == [
        "--repo=org/Tiny-1.5",
        "--revision=main",
        "--directory=/models/cache/org/Tiny-1.5/main",
    ]
    assert "--model=/models/cache/org/Tiny-1.5/main" in worker["args"]
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]


def test_without_a_cache_each_pod_has_a_volume_of_its_own():
    assert pod()["volumes"][-1] == {"name": "cache", "emptyDir": {}}
    assert claim_name(deployment()) == ""


def test_a_model_on_a_volume_is_not_downloaded():
    spec = pod(model={"uri": "pvc://models/tiny"})
    assert "initContainers" not in spec
    assert "fsGroup" not in spec["securityContext"]


def test_a_template_reaches_the_downloader():
    endpoint = {"name": "HF_ENDPOINT", "value": "https://mirror.example"}
    spec = pod(template={"spec": {"initContainers": [{"name": "download", "env": [endpoint]}]}})
    assert endpoint in spec["initContainers"][0]["env"]
    assert len(spec["initContainers"]) == 1


def test_a_claim_of_ours_has_the_size_and_goes_with_the_deployment():
    wanted = deployment(cache={"size": "40Gi", "storageClassName": "fast"})
    made = claim_manifest(wanted)
    assert made["metadata"]["name"] == claim_name(wanted) == "tiny-cache"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert made["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "40Gi"}},
        "storageClassName": "fast",
    }
    assert "storageClassName" not in claim_manifest(deployment(cache={"size": 5}))["spec"]
    assert claim_name(deployment(cache={"claimName": "shared"})) == ""


def test_the_downloader_proves_itself_to_the_operator_as_the_worker_does():
    secured = replace(deployment(), mutual_tls=True)
    spec = pod_manifest(secured, image="worker:1", index=0, defaults=WorkerDefaults("Always", "a", "b"))["spec"]
    (downloader,), (worker,) = spec["initContainers"], spec["containers"]
    names = ["DORMOUSE_POD_UID", "DORMOUSE_OPERATOR_KEY", "DORMOUSE_MUTUAL_TLS_DIR"]
    own = [each for each in downloader["env"] if each["name"] in names]
    assert own == [each for each in worker["env"] if each["name"] in names]
    assert len(own) == len(names)
    assert [each for each in worker["volumeMounts"] if each["name"] == "certificates"] == [
        downloader["volumeMounts"][-1]
    ]
    assert "certificates" not in str(pod()["initContainers"])


# --- in the operator's passes ---


def initializes(rig, index=0, **status):
    """Have the kubelet tell of the init container of a pod; the worker's own waits."""

    def edit(obj):
        obj["status"]["initContainerStatuses"] = [{"name": "download", "restartCount": 0, **status}]
        waiting = {"waiting": {"reason": "PodInitializing"}}
        obj["status"]["containerStatuses"][0].update(state=waiting, ready=False)

    rig.kube.edit(PODS, "team", rig.pods[index], edit)


def ended(code, message=""):
    return {"terminated": {"exitCode": code, "reason": "Error", "message": message}}


async def test_the_claim_is_made_with_the_first_pod_and_nothing_is_written_at_rest(rig):
    await rig.serving(model=MODEL, cache={"size": "1Gi"})
    assert rig.status["phase"] == "Active"
    assert [claim["metadata"]["name"] for claim in rig.kube.everything(CLAIMS)] == ["tiny-cache"]
    calls = len(rig.kube.mutations())
    await rig.settle()
    assert len(rig.kube.mutations()) == calls


async def test_a_claim_of_that_name_is_used_and_never_changed(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny-cache"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    before = rig.kube.put(CLAIMS, theirs)
    await rig.serving(model=MODEL, cache={"size": "1Gi"})
    assert rig.status["phase"] == "Active"
    assert rig.kube.everything(CLAIMS) == [before]
    assert rig.errors == []


async def test_a_claim_that_is_refused_is_told_in_the_servers_words_and_tried_again(rig):
    rig.kube.fail("create", CLAIMS, Forbidden("exceeded quota: storage", status=403, reason="Forbidden"), times=2)
    rig.apply(model=MODEL, cache={"size": "1Gi"})
    for _ in range(2):
        await rig.reconcile()
    assert rig.condition("Scheduled") == (
        "False",
        "ChildRejected",
        "PersistentVolumeClaim tiny-cache: exceeded quota: storage",
    )
    assert rig.pods == []
    await rig.settle()
    assert len(rig.pods) == 1


async def test_a_download_is_told_while_it_runs_with_one_event(rig):
    rig.apply(model=MODEL)
    await rig.settle()
    initializes(rig, state={"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    await rig.settle()
    assert rig.condition("ModelLoaded") == (
        "False",
        "DownloadingModel",
        f"pod {rig.pods[0]} downloads hf://org/Tiny-1.5 at revision main",
    )
    assert rig.status["phase"] == "Starting"
    await rig.settle()
    assert len([event for event in rig.events if event.startswith("DownloadingModel")]) == 1


async def downloading(rig, *downloads, **spec):
    """Let each pod download, and say this of it."""
    rig.apply(model=MODEL, replicas=len(downloads), **spec)
    await rig.settle()
    for index, download in enumerate(downloads):
        initializes(rig, index, state={"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        rig.worker(index).download = download
    await rig.settle()


async def test_a_download_tells_how_much_is_there_and_is_asked_again(rig):
    await downloading(rig, Download(GIB // 2, 3 * GIB))
    words = f"pod {rig.pods[0]} downloads hf://org/Tiny-1.5 at revision main"
    assert rig.condition("ModelLoaded")[2] == f"{words}: 0.50 GiB of 3.00 GiB"
    rig.worker().download = Download(2 * GIB, 3 * GIB)
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[2] == f"{words}: 2.00 GiB of 3.00 GiB"
    assert await rig.reconcile() == 5
    rig.worker().pod_uid = "another pod's"
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[2] == words
    assert len([event for event in rig.events if event.startswith("DownloadingModel")]) == 1


async def test_of_pods_that_take_turns_the_one_that_downloads_is_told(rig):
    await downloading(rig, None, Download(GIB, 4 * GIB))
    assert rig.condition("ModelLoaded")[2].startswith(f"pod {rig.pods[1]} downloads")


async def test_a_download_that_failed_is_told_before_one_that_goes_on(rig):
    await downloading(rig, None, Download(GIB, 4 * GIB))
    initializes(rig, state={"waiting": {}}, lastState=ended(1, "StorageFull: words"))
    await rig.settle()
    assert rig.condition("ModelLoaded")[1] == "ModelDownloadFailed"


async def test_a_follower_that_downloads_is_told(rig):
    rig.apply(model=MODEL, parallelism=PAIR)
    await rig.settle()
    [name] = followers(rig)
    initializes(rig, rig.pods.index(name), state={"running": {}})
    status = rig.kube.peek(PODS, "team", name)
    worker = FakeWorker(status["metadata"]["uid"], "", download=Download(GIB, 2 * GIB))
    rig.workers.workers[status["status"]["podIP"]] = worker
    await rig.reconcile()
    assert rig.condition("ModelLoaded")[2].endswith("1.00 GiB of 2.00 GiB")


async def test_a_download_that_failed_is_told_in_the_downloaders_words(rig):
    rig.apply(model=MODEL)
    await rig.settle()
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    initializes(rig, state=waiting, lastState=ended(1, "Unauthorized: hf://org/Tiny-1.5 is private"), restartCount=3)
    await rig.settle()
    status, reason, message = rig.condition("ModelLoaded")
    assert (status, reason) == ("False", "ModelDownloadFailed")
    assert message.endswith("restarted 3 times: Unauthorized: hf://org/Tiny-1.5 is private")
    assert rig.status["phase"] == "Failed"


async def test_a_download_that_is_tried_again_says_how_the_last_one_ended(rig):
    rig.apply(model=MODEL)
    await rig.settle()
    initializes(rig, state={"running": {}}, lastState=ended(1, "Truncated: words"), restartCount=1)
    await rig.settle()
    assert rig.condition("ModelLoaded")[1] == "DownloadingModel"
    assert "Truncated: words" in rig.condition("ModelLoaded")[2]


async def test_a_missing_secret_is_told_in_the_kubelets_words(rig):
    rig.apply(model={**MODEL, "tokenSecretRef": {"name": "hub"}})
    await rig.settle()
    words = 'secret "hub" not found'
    initializes(rig, state={"waiting": {"reason": "CreateContainerConfigError", "message": words}})
    await rig.settle()
    assert rig.condition("ModelLoaded")[1] == "ContainerNotStarted"
    assert words in rig.condition("ModelLoaded")[2]


async def test_an_image_that_the_downloader_can_not_pull_is_told(rig):
    rig.apply(model=MODEL)
    await rig.settle()
    initializes(rig, state={"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    await rig.settle()
    assert rig.condition("ModelLoaded")[1] == "ImagePullFailed"


async def test_a_download_that_is_done_is_not_told(rig):
    await rig.serving(model=MODEL)

    def edit(obj):
        obj["status"]["initContainerStatuses"] = [{"name": "download", "state": ended(0)}]

    rig.kube.edit(PODS, "team", rig.pods[0], edit)
    await rig.settle()
    assert rig.condition("ModelLoaded")[1] == "Loaded"
    assert rig.kube.peek(INFERENCE_DEPLOYMENTS, "team", "tiny")["status"]["phase"] == "Active"
