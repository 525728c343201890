"""Which Secrets the operator can reach, tried at a real API server with the chart's own rights."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dormouse_kube.api import SECRETS, Kind
from dormouse_kube.client import KubeClient
from dormouse_operator.manifests.identity import SHARED_SECRETS, secret_manifest, shared_metadata
from tests.faults.control_plane import ControlPlane, render_rights
from tests.faults.world import install
from tools.release import CHART

OURS, THEIRS = SHARED_SECRETS[3], "password"
HIDDEN = "Y29ycmVjdCBob3JzZQ=="  # what is in their Secret
_NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)
_MERGE, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_APPLY = "application/apply-patch+yaml"
_COPY = [{"op": "copy", "from": "/data/secret", "path": "/type"}]
ALLOWED = (200, 201)


def secret(name: str) -> dict[str, Any]:
    return secret_manifest(shared_metadata("tenant", name), {"tls.crt": b"", "tls.key": b""})


FORBIDDEN = {  # method, name, query, content type, body
    "reading it": ("GET", THEIRS, "", "", None),
    "listing all": ("GET", "", "", "", None),
    "listing it": ("GET", "", f"?fieldSelector=metadata.name={THEIRS}", "", None),
    "listing ours": ("GET", "", "?labelSelector=app.kubernetes.io/part-of=dormouse", "", None),
    "watching": ("GET", "", "?watch=1&timeoutSeconds=1", "", None),
    "a patch that changes nothing": ("PATCH", THEIRS, "", _MERGE, {}),
    "a patch that is told with the whole object": ("PATCH", THEIRS, "?fieldValidation=Strict", _MERGE, {"x": 1}),
    "a patch that copies": ("PATCH", THEIRS, "", _JSON_PATCH, _COPY),
    "a patch that is tried only": ("PATCH", THEIRS, "?dryRun=All", _MERGE, {}),
    "applying": ("PATCH", THEIRS, "?fieldManager=a&force=true", _APPLY, secret(THEIRS)),
    "replacing": ("PUT", THEIRS, "", "application/json", secret(THEIRS)),
    "deleting": ("DELETE", THEIRS, "", "", None),
    "deleting all": ("DELETE", "", "", "", None),
    "deleting ours": ("DELETE", OURS, "", "", None),
    "making another": ("POST", "", "", "application/json", secret("another")),
    "making another by an apply": ("PATCH", "another", "?fieldManager=a", _APPLY, secret("another")),
    "making one that begins like ours": ("PATCH", f"{OURS}0", "?fieldManager=a", _APPLY, secret(f"{OURS}0")),
}


@dataclass(frozen=True)
class Account:
    """An operator's account, and a namespace with a Secret of somebody else."""

    plane: ControlPlane
    user: str
    namespace: str

    async def ask(self, method: str, name: str, query: str, content_type: str, body: Any) -> tuple[int, str]:
        """Return status and text of the API server's answer."""
        return await asyncio.to_thread(self._ask, method, name, query, content_type, body)

    def _ask(self, method: str, name: str, query: str, content_type: str, body: Any) -> tuple[int, str]:
        path = "/".join(filter(None, (f"{self.plane.url}/api/v1/namespaces/{self.namespace}/secrets", name)))
        if isinstance(body, dict) and "metadata" in body:
            body = {**body, "metadata": {**body["metadata"], "namespace": self.namespace}}
        headers = {"Authorization": f"Bearer {self.plane.token(self.user)}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(path + query, data, headers, method=method)
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.plane.ca))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        try:
            with opener.open(request, timeout=90) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(params=["one namespace", "all namespaces"])
async def account(request: pytest.FixtureRequest, plane: ControlPlane, kube: KubeClient, binaries: Path) -> Account:
    """The operator of a release that watches one namespace or all of them."""
    user, watched = {"one namespace": ("operator-of-one", ("tenant",)), "all namespaces": ("operator-of-all", ())}[
        request.param
    ]
    system, namespace = f"{user}-system", "tenant"
    for each in (system, namespace):
        await kube.apply(_NAMESPACES, {"metadata": {"name": each}}, field_manager="tests")
    rights = await asyncio.to_thread(render_rights, binaries / "helm", CHART, system, watched=watched)
    await install(kube, rights, (user,))
    theirs = {"metadata": {"namespace": namespace, "name": THEIRS}, "data": {"secret": HIDDEN}}
    await kube.apply(SECRETS, {**theirs, "apiVersion": "v1", "kind": "Secret"}, field_manager="somebody")
    found = Account(plane, user, namespace)
    deadline = asyncio.get_running_loop().time() + 20
    while (await found.ask("GET", OURS, "", "", None))[0] not in {200, 404}:
        assert asyncio.get_running_loop().time() < deadline, "the rights have not come"
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_nothing_of_a_secret_that_is_not_ours_is_shown_or_changed(account: Account, what: str):
    status, text = await account.ask(*FORBIDDEN[what])
    assert status == 403, text
    assert HIDDEN not in text


async def test_the_secrets_of_our_names_can_be_made_read_and_changed(account: Account):
    manifest = secret(OURS)
    made = await account.ask("PATCH", OURS, "?fieldManager=dormouse-operator&force=true", _APPLY, manifest)
    assert made[0] in ALLOWED, made
    status, text = await account.ask("GET", OURS, "", "", None)
    assert (status, json.loads(text)["metadata"]["name"]) == (200, OURS)
    manifest["data"]["ca.crt"] = HIDDEN
    changed = await account.ask("PATCH", OURS, "?fieldManager=dormouse-operator&force=true", _APPLY, manifest)
    assert changed[0] == 200
    assert json.loads(changed[1])["data"]["ca.crt"] == HIDDEN
