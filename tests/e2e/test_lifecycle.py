"""The life of a deployment on the real cluster: agreement, scaling, recovery, sleep, wake, deletion."""

from __future__ import annotations

import json

import pytest

from tests.e2e.kit import wait_until_none

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

MUTATION = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}}
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    objectSelector:
      matchLabels: {{inference.dormouse.dev/deployment: {deployment}, inference.dormouse.dev/replica: "1"}}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: '[JSONPatch{{op: "replace", path: "/spec/containers/0/resources/limits/memory", value: "1200Mi"}}]'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec: {{policyName: {name}}}
"""


def probe_pod(deployment):
    """Return a pod like the second replica's; a dry run shows what admission makes of it."""
    labels = {"inference.dormouse.dev/deployment": deployment, "inference.dormouse.dev/replica": "1"}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "worker",
        "image": "probe",
        "resources": {"requests": {"memory": "1Mi"}, "limits": {"memory": "1536Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": labels},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**container, "securityContext": security}],
        },
    }


@pytest.fixture
def smaller_second_replica(cluster, namespace, eventually):
    """Give replica 1 of the deployment `uneven` less memory, as a smaller node would."""
    name = f"smaller-{namespace}"
    text = MUTATION.format(name=name, namespace=namespace, deployment="uneven")
    cluster.kubectl("apply", "-f", "-", stdin=text)
    dry_run = ["create", "--dry-run=server", "-n", namespace, "-o", "json", "-f", "-"]
    eventually(lambda: "1200Mi" in cluster.kubectl(*dry_run, stdin=json.dumps(probe_pod("uneven"))))
    yield
    cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)


def allocated_blocks(deployments, name):
    """Return each rank's report and the agreed count from the status."""
    cache = deployments.status(name)["kvCache"]
    return {rank["pod"]: rank["numGpuBlocks"] for rank in cache["ranks"]}, cache


@pytest.mark.usefixtures("smaller_second_replica")
def test_two_workers_with_different_limits_report_different_counts_and_both_allocate_the_minimum(
    deployments, eventually
):
    deployments.apply("uneven", replicas=2)
    deployments.wait("uneven", "condition=Ready", timeout_s=240)
    eventually(lambda: deployments.status("uneven").get("readyReplicas") == 2)
    reports, cache = allocated_blocks(deployments, "uneven")
    pods = [pod["metadata"]["name"] for pod in deployments.pods("uneven")]
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in deployments.pods("uneven")]
    assert limits == ["1536Mi", "1200Mi"]
    assert reports[pods[1]] < reports[pods[0]]
    assert cache["numGpuBlocks"] == reports[pods[1]]
    assert pods[1] in cache["limitingRank"]
    agreed = cache["numGpuBlocks"]
    words = ("blocks agreed", str(agreed), pods[1])
    eventually(lambda: any(all(word in message for word in words) for message in deployments.events("uneven")))
    assert worker_metric(deployments, pods, "vllm:cache_config_info", "num_gpu_blocks") == [str(agreed)] * 2


def worker_metric(deployments, pods, metric, label):
    """Read a label of a worker metric from each pod, through the API server's proxy."""
    values = []
    for pod in pods:
        path = f"/api/v1/namespaces/{deployments.namespace}/pods/{pod}:8080/proxy/metrics"
        text = deployments.cluster.kubectl("get", "--raw", path)
        line = next(line for line in text.splitlines() if line.startswith(metric + "{"))
        values.append(line.split(f'{label}="')[1].split('"')[0])
    return values


def test_kubectl_explain_get_scale_and_wait_work(deployments, cluster, eventually):
    name = deployments.apply("scaled")
    deployments.wait(name, "condition=Ready")
    # only after kubectl has met the kind: explain takes short names from its cached list, which may be older
    assert "maxModelLen" in cluster.kubectl("explain", "infd.spec.engine")
    columns = cluster.kubectl("get", "infd", name, "-n", deployments.namespace).splitlines()[0].split()
    assert columns == ["NAME", "MODEL", "PHASE", "READY", "SLEEPING", "BLOCKS", "AGE"]
    cluster.kubectl("scale", f"infd/{name}", "-n", deployments.namespace, "--replicas=2")
    eventually(lambda: deployments.status(name).get("readyReplicas") == 2)
    cluster.kubectl("scale", f"infd/{name}", "-n", deployments.namespace, "--replicas=1")
    eventually(lambda: len(deployments.pods(name)) == 1 and deployments.status(name)["replicas"] == 1)


def pod_uids(deployments, name):
    """Return the UIDs of the pods of a deployment."""
    return {pod["metadata"]["uid"] for pod in deployments.pods(name)}


def test_a_killed_worker_and_a_deleted_pod_come_back_and_the_blocks_are_agreed_again(
    deployments, cluster, model_of, eventually
):
    name = deployments.apply("mortal")
    deployments.wait(name, "condition=Ready")
    [pod] = deployments.pods(name)
    before = eventually(lambda: model_of.answers(name, [10, 11, 12], 8))
    kill = "import os, signal; os.kill(1, signal.SIGTERM)"
    cluster.kubectl("exec", "-n", deployments.namespace, pod["metadata"]["name"], "--", "python", "-c", kill)
    eventually(lambda: deployments.restarts(name) == [1])
    # the status may still tell of the worker that was killed; an answer comes from the one that came back
    assert eventually(lambda: model_of.answers(name, [10, 11, 12], 8)) == before
    eventually(lambda: deployments.status(name).get("readyReplicas") == 1)
    cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", deployments.namespace)
    eventually(lambda: pod_uids(deployments, name) and pod["metadata"]["uid"] not in pod_uids(deployments, name))
    assert eventually(lambda: model_of.answers(name, [10, 11, 12], 8)) == before
    eventually(lambda: deployments.status(name).get("readyReplicas") == 1)
    deployments.wait(name, "condition=BlocksAgreed")


def test_a_killed_engine_comes_back_in_the_same_container_and_the_blocks_are_agreed_again(
    deployments, cluster, model_of, eventually
):
    name = deployments.apply("phoenix")
    deployments.wait(name, "condition=Ready")
    [pod] = deployments.pods(name)
    pod_name = pod["metadata"]["name"]
    before = eventually(lambda: model_of.answers(name, [10, 11, 12], 8))
    kill = (
        "import os, pathlib, signal; "
        "os.kill(int(pathlib.Path('/proc/1/task/1/children').read_text().split()[0]), signal.SIGKILL)"
    )
    cluster.kubectl("exec", "-n", deployments.namespace, pod_name, "--", "python", "-c", kill)
    path = f"/api/v1/namespaces/{deployments.namespace}/pods/{pod_name}:8080/proxy/metrics"
    eventually(lambda: restarts_of_engine(cluster.kubectl("get", "--raw", path)) == 1)
    assert eventually(lambda: model_of.answers(name, [10, 11, 12], 8)) == before
    [again] = deployments.pods(name)
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0


def restarts_of_engine(metrics):
    """Return how often the worker with these metrics started its engine again."""
    line = next(line for line in metrics.splitlines() if line.startswith("dormouse_engine_restarts_total{"))
    return float(line.rsplit(" ", 1)[1])


def operator_selector(release):
    """Return the labels of a release's operator."""
    return f"app.kubernetes.io/component=operator,app.kubernetes.io/instance={release.name}"


def test_an_operator_killed_in_the_middle_converges(deployments, cluster, release, eventually):
    name = deployments.apply("midway")
    eventually(lambda: deployments.pods(name))
    cluster.kubectl(
        "delete", "pod", "-n", release.namespace, "-l", operator_selector(release), "--grace-period=0", "--force"
    )
    deployments.wait(name, "condition=Ready", timeout_s=180)
    assert len(deployments.pods(name)) == 1


def test_a_sleeping_deployment_gives_memory_back_and_answers_the_same_after_waking(
    deployments, model_of, tiny_model, eventually
):
    name = deployments.apply("sleepy", engine={"kvCacheMemory": "512Mi"})
    deployments.wait(name, "condition=Ready")
    before = eventually(lambda: model_of.answers(name, [20, 21, 22, 23], 12))
    awake_bytes = deployments.resident_bytes(name)
    deployments.sleep(name, level=2)
    status = deployments.status(name)
    assert (status["phase"], status["sleepingReplicas"]) == ("Asleep", 1)
    assert status["kvCache"]["ranks"][0]["residualBytes"] > 0
    weights_bytes = (tiny_model / "model.safetensors").stat().st_size
    freed_bytes = awake_bytes - deployments.resident_bytes(name)
    assert freed_bytes > weights_bytes, "the kernel counts: the weights and the blocks that were in use are gone"
    refusal = eventually(lambda: "Asleep" in model_of.refusal(name) and model_of.refusal(name))
    assert "UNAVAILABLE" in refusal
    assert model_of(name).tokenize("import os"), "a sleeping model still tokenizes"
    deployments.patch(name, {"lifecycle": {"desiredState": "Active"}})
    deployments.wait(name, "jsonpath={.status.phase}=Active")
    assert deployments.status(name)["lastActuation"]["path"] == "level2"
    assert eventually(lambda: model_of.answers(name, [20, 21, 22, 23], 12)) == before


def test_deleting_a_deployment_leaves_nothing(deployments):
    before = deployments.everything()
    name = deployments.apply("gone")
    deployments.wait(name, "condition=Ready")
    assert len(deployments.everything() - before) > 2, "the deployment, its Service, its pod"
    deployments.delete(name)
    wait_until_none(lambda: deployments.everything() - before)


def test_a_deployment_can_be_deleted_while_the_operator_is_absent(deployments, cluster, release):
    before = deployments.everything()
    name = deployments.apply("orphan")
    deployments.wait(name, "condition=Ready")
    [operator] = cluster.list("deployments", release.namespace, operator_selector(release))
    operator = f"deployment/{operator['metadata']['name']}"
    cluster.kubectl("scale", operator, "-n", release.namespace, "--replicas=0")
    wait_until_none(lambda: names(cluster.list("pods", release.namespace, operator_selector(release))))
    try:
        deployments.delete(name)
        wait_until_none(lambda: deployments.everything() - before)
    finally:
        cluster.kubectl("scale", operator, "-n", release.namespace, "--replicas=1")
        cluster.kubectl("rollout", "status", operator, "-n", release.namespace, "--timeout=90s")


def names(objects):
    """Return the names of objects."""
    return [item["metadata"]["name"] for item in objects]
