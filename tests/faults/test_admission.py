"""The chart's admission policy at a real API server: what a deployment may ask of its pods, and what may not change."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dormouse_kube.api import DAEMON_SETS, INFERENCE_DEPLOYMENTS, PODS, SECRETS, Kind
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import KubeError
from dormouse_operator.manifests.identity import SHARED_SECRETS
from tests.faults.connections import end_connections
from tests.faults.control_plane import ControlPlane, render_rights
from tests.faults.programs import clean_environment
from tests.faults.world import World, install
from tools.release import CHART

_REGISTRATION = "admissionregistration.k8s.io/v1"
_NAMES = itertools.count(1)
_HOST = {"name": "host", "hostPath": {"path": "/"}}
_TOKEN = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
_WORKER = {"name": "worker"}
_OPERATOR, _ELSEWHERE = "operator-of-all", "elsewhere"  # where no kubelet starts what it makes

FORBIDDEN = {
    "a service account": ({"serviceAccountName": "admin"}, "serviceAccountName"),
    "the old name of a service account": ({"serviceAccount": "admin"}, "serviceAccountName"),
    "its token": ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
    "its token, by removing what keeps it out": (
        {"automountServiceAccountToken": None},
        "automountServiceAccountToken",
    ),
    "a token in a volume": ({"volumes": [_TOKEN]}, "serviceAccountTokens"),
    "a path of the host": ({"volumes": [{"name": "empty", "emptyDir": {}}, _HOST]}, "hostPath"),
    "the host's network": ({"hostNetwork": True}, "hostNetwork"),
    "the host's processes": ({"hostPID": True}, "hostPID"),
    "a privileged container": ({"containers": [_WORKER | {"securityContext": {"privileged": True}}]}, "privileged"),
    "a foreign image": ({"containers": [{"name": "side", "image": "evil.example/x"}]}, "evil.example/x"),
    "a foreign image that begins alike": (
        {"initContainers": [{"name": "side", "image": "registry.example.evil.com/x"}]},
        "registry.example.evil.com/x",
    ),
    "a foreign image as a volume": ({"volumes": [{"name": "v", "image": {"reference": "evil.example/y"}}]}, "evil"),
}
ALLOWED: list[Mapping[str, Any]] = [
    {},
    {"template": {}},
    {"template": {"spec": {}}},
    {"template": {"metadata": {"labels": {"team": "a"}}}},
    {"template": {"spec": {"serviceAccountName": None, "volumes": None, "containers": None}}},
    {"template": {"spec": {"automountServiceAccountToken": False, "hostNetwork": False}}},
    {"template": {"spec": {"containers": [_WORKER | {"env": [{"name": "A", "value": "b"}], "securityContext": {}}]}}},
    {"template": {"spec": {"containers": [{"name": "side", "image": "registry.example/team/side:1"}]}}},
    {"image": "registry.example/team/worker:1"},
    {"model": {"uri": "oci://registry.example/team/model:1"}},
]

Create = Callable[[Mapping[str, Any]], Any]


def render(helm: Path, namespace: str) -> str:
    """Return the policy for one namespace, as YAML."""
    values = ["watch.namespaces={%s}" % namespace, "admissionPolicies.enabled=true"]  # noqa: UP031  # braces are helm's
    values += ["admissionPolicies.imagePrefixes={registry.example/}", "admissionPolicies.immutableFields={model.uri}"]
    settings = [part for value in values for part in ("--set", value)]
    place = ["--namespace", namespace, "--kube-version", "1.36.0", "--show-only", "templates/admissionpolicies.yaml"]
    command = [str(helm), "template", "dormouse", str(CHART), *place, *settings]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout
    account = f"system:serviceaccount:{namespace}:dormouse-operator"
    assert account in text
    return text.replace(account, _OPERATOR)  # there are no service accounts here


@pytest.fixture
async def create(world: World, kube: KubeClient, binaries: Path) -> AsyncIterator[Create]:
    """Return what creates a deployment under the policy, which holds by then."""

    async def make(spec: Mapping[str, Any]) -> str:
        name = f"d{next(_NAMES)}"
        await world.create(name, {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec})
        return name

    async def is_held() -> bool:
        try:
            await make({"template": {"spec": {"hostNetwork": True}}})
        except KubeError:
            return True
        return False

    manifests = await asyncio.to_thread(render, binaries / "helm", world.namespace)
    await install(kube, manifests)
    await world.eventually(is_held)
    yield make
    for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        kind = Kind(_REGISTRATION, "", plural, namespaced=False)
        for item in (await kube.list(kind, None)).items:
            await kube.delete(kind, "", item["metadata"]["name"])


async def test_a_template_may_not_ask_for_what_its_writer_may_not_have(create: Create) -> None:
    for what, (template, named) in FORBIDDEN.items():
        with pytest.raises(KubeError) as caught:
            await create({"template": {"spec": template}})
        assert named in str(caught.value), what
    with pytest.raises(KubeError, match=r"the image elsewhere\.example/w begins with none of registry\.example/"):
        await create({"image": "elsewhere.example/w"})
    with pytest.raises(KubeError, match=r"the image elsewhere\.example/m:1 begins with none of registry\.example/"):
        await create({"model": {"uri": "oci://elsewhere.example/m:1"}})


async def test_what_a_template_is_for_stays_allowed(create: Create) -> None:
    for spec in ALLOWED:
        await create(spec)


async def test_a_field_that_is_not_to_change_can_not_and_others_can(create: Create, world: World) -> None:
    name = await create({})
    place = {"metadata": {"name": name, "namespace": world.namespace}}
    manager, other = "somebody", {"spec": {"model": {"uri": "pvc://models/other"}}}
    with pytest.raises(KubeError, match=r"spec\.model\.uri cannot be changed"):
        await world.kube.apply(INFERENCE_DEPLOYMENTS, place | other, field_manager=manager)
    await world.kube.apply(INFERENCE_DEPLOYMENTS, place | {"spec": {"replicas": 2}}, field_manager=manager)
    await world.kube.apply(
        INFERENCE_DEPLOYMENTS,
        place | {"spec": {"model": {"uri": "pvc://models/tiny", "name": "m"}}},
        field_manager=manager,
    )


TEMPLATE_OF_A_POD = {"containers": [{"name": "worker", "image": "x"}], "automountServiceAccountToken": False}


def on_nodes(**pod: Any) -> tuple[Kind, Mapping[str, Any]]:
    """Return a DaemonSet of such pods."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": TEMPLATE_OF_A_POD | pod}
    return DAEMON_SETS, {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


FORBIDDEN_TO_THE_OPERATOR = {
    "a pod of a service account": (PODS, {"spec": TEMPLATE_OF_A_POD | {"serviceAccountName": "admin"}}),
    "a pod with a token": (PODS, {"spec": TEMPLATE_OF_A_POD | {"automountServiceAccountToken": True}}),
    "a pod that does not say so": (PODS, {"spec": {"containers": TEMPLATE_OF_A_POD["containers"]}}),
    "a pod with a token in a volume": (
        PODS,
        {"spec": TEMPLATE_OF_A_POD | {"serviceAccountName": "default", "volumes": [_TOKEN]}},
    ),
    "pods of a service account on nodes": on_nodes(serviceAccountName="admin"),
    "pods with a token on nodes": on_nodes(automountServiceAccountToken=True),
    "pods with a token in a volume on nodes": on_nodes(volumes=[_TOKEN]),
    "a Secret that Kubernetes fills": (
        SECRETS,
        {
            "metadata": {"annotations": {"kubernetes.io/service-account.name": "admin"}},
            "type": "kubernetes.io/service-account-token",
        },
    ),
}
ALLOWED_TO_THE_OPERATOR: list[tuple[Kind, Mapping[str, Any]]] = [
    (PODS, {"spec": TEMPLATE_OF_A_POD}),
    (PODS, {"spec": TEMPLATE_OF_A_POD | {"serviceAccountName": "default", "volumes": [{"name": "e", "emptyDir": {}}]}}),
    on_nodes(volumes=[{"name": "m", "image": {"reference": "registry.example/m:1"}}]),
    (SECRETS, {"type": "Opaque"}),
    (SECRETS, {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}),
]


@pytest.fixture
async def operators(plane: ControlPlane, kube: KubeClient, binaries: Path) -> AsyncIterator[KubeClient]:
    """The client of an operator that watches all namespaces."""
    place = Kind("v1", "Namespace", "namespaces", namespaced=False)
    await kube.apply(place, {"metadata": {"name": _ELSEWHERE}}, field_manager="tests")
    rights = await asyncio.to_thread(render_rights, binaries / "helm", CHART, _ELSEWHERE, watched=())
    await install(kube, rights, (_OPERATOR,))
    async with await KubeClient.connect(kubeconfig=str(plane.kubeconfig(_OPERATOR))) as client:
        yield client
        await end_connections(client._api_client.rest_client.pool_manager)


async def made(operators: KubeClient, kind: Kind, manifest: Mapping[str, Any]) -> str:
    """Have the operator make it under one of its names; return what it is told, "" if it is made."""
    name = SHARED_SECRETS[next(_NAMES) % len(SHARED_SECRETS)] if kind is SECRETS else f"p{next(_NAMES)}"
    metadata = {**manifest.get("metadata", {}), "name": name, "namespace": _ELSEWHERE}
    identity = {"apiVersion": kind.api_version, "kind": kind.kind}
    try:
        await operators.apply(kind, {**identity, **manifest, "metadata": metadata}, field_manager="dormouse-operator")
    except KubeError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("create")  # the policies hold
async def test_whoever_has_the_operators_token_gets_no_other_accounts(operators: KubeClient, world: World) -> None:
    async def is_held() -> bool:
        kind, manifest = FORBIDDEN_TO_THE_OPERATOR["a pod of a service account"]
        return "the operator makes" in await made(operators, kind, manifest)

    await world.eventually(is_held)
    for what, (kind, manifest) in FORBIDDEN_TO_THE_OPERATOR.items():
        assert "the operator makes" in await made(operators, kind, manifest), what
    for kind, manifest in ALLOWED_TO_THE_OPERATOR:
        assert await made(operators, kind, manifest) == ""
