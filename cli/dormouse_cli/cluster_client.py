"""The real Cluster: KubeClient and the few calls that only people need. Owns the login and the default namespace."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import config as kubernetes_config

from dormouse_cli.cluster import LogQuery, Opened, Target, explain, kube_errors
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.tunnel import Tunnel, forwarded
from dormouse_kube.answers import error_of, foreign_errors
from dormouse_kube.api import Kind, Resource
from dormouse_kube.client import ClientSettings, KubeClient
from dormouse_kube.errors import KubeError

FIELD_MANAGER = "dormouse"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SETTINGS = ClientSettings(connect_timeout_s=5.0, request_timeout_s=20.0)


class ClusterClient(KubeClient):
    """Cluster over HTTP."""

    @property
    def address(self) -> str:
        """See Cluster."""
        return str(self._api_client.configuration.host)

    async def server_version(self) -> str:
        """See Cluster."""
        return str(json.loads(await self._text("GET", "/version"))["gitVersion"])

    async def patch(self, kind: Kind, namespace: str, name: str, change: Mapping[str, Any]) -> Resource:
        """See Cluster."""
        path = f"/apis/{kind.api_version}/namespaces/{quote(namespace)}/{kind.plural}/{quote(name)}"
        query = urlencode({"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"})
        answer = await self._text("PATCH", f"{path}?{query}", body=change, content="application/merge-patch+json")
        return dict(json.loads(answer))

    async def may(self, verb: str, resource: str, group: str, namespace: str) -> bool:
        """See Cluster."""
        plural, _, subresource = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(json.loads(await self._text("POST", path, body=review))["status"]["allowed"])

    async def logs(self, namespace: str, pod: str, query: LogQuery) -> AsyncIterator[str]:
        """See Cluster."""
        wanted = {
            "container": query.container,
            "timestamps": "true",
            "follow": "true" if query.follow else "",
            "previous": "true" if query.previous else "",
            "tailLines": "" if query.tail_lines is None else str(query.tail_lines),
            "sinceSeconds": "" if query.since_s is None else str(query.since_s),
        }
        options = urlencode({key: value for key, value in wanted.items() if value})
        path = f"{_pod(namespace, pod)}/log?{options}"
        with foreign_errors(f"get {path}"):
            answer = await self._open("GET", path, timeout=aiohttp.ClientTimeout(sock_connect=5.0))
            try:
                async for line in _lines(answer.content):
                    yield line
            finally:
                answer.close()

    async def metrics(self, namespace: str, pod: str, port: int) -> str:
        """See Cluster."""
        return await self._text("GET", f"{_pod(namespace, pod)}:{port}/proxy/metrics")

    def forward(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[int]:
        """See Cluster."""
        path = f"{_pod(namespace, pod)}/portforward?ports={port}"

        async def connect() -> Tunnel:
            return Tunnel(await self._websocket(path))

        return forwarded(connect)

    async def _websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket to the API server. Raises KubeError."""
        url, headers, _ = await self._signed("GET", path, None, "application/json")
        session = await self._session()
        with foreign_errors(f"get {path}"):
            try:
                return await session.ws_connect(url, headers=headers, protocols=("v4.channel.k8s.io",), max_msg_size=0)
            except aiohttp.WSServerHandshakeError as error:
                raise error_of(
                    error.status, {}, json.dumps({"message": f"{path}: {error.message}"}).encode()
                ) from error

    async def _session(self) -> aiohttp.ClientSession:
        """Return the library's session, which knows the cluster's certificates."""
        rest = self._api_client.rest_client
        if rest.pool_manager is None:
            await self.server_version()  # the library makes it with the first request
        assert rest.pool_manager is not None
        return rest.pool_manager

    async def _text(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> str:
        with foreign_errors(f"{method} {path}"):
            timeout = aiohttp.ClientTimeout(total=_SETTINGS.request_timeout_s, sock_connect=5.0)
            answer = await self._open(method, path, body=body, content=content, timeout=timeout)
            return (await answer.read()).decode(errors="replace")

    async def _open(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> aiohttp.ClientResponse:
        """Send a request; return the open answer, or raise what it says."""
        url, headers, sent = await self._signed(method, path, body, content)
        answer = await self._api_client.call_api(method, url, headers, sent, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        if answer.status >= 400:
            raise error_of(answer.status, response.headers, await response.read())
        return response

    async def _signed(
        self, method: str, path: str, body: Mapping[str, Any] | None, content: str
    ) -> tuple[str, Any, Any]:
        _, url, headers, sent, _ = await self._api_client.param_serialize(
            method,
            path,
            header_params={"Accept": "*/*", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        return url, headers, sent


@asynccontextmanager
async def open_cluster(target: Target) -> AsyncIterator[Opened]:
    """Log in as the kubeconfig says, or the pod's service account. Raises CommandFailed."""
    check_kubeconfig(target.kubeconfig)
    try:
        client = await ClusterClient.connect(kubeconfig=target.kubeconfig, context=target.context, settings=_SETTINGS)
    except KubeError as error:
        raise explain(error) from error
    async with client:
        with kube_errors(client.address):
            yield Opened(client, target.namespace or default_namespace(target))


def check_kubeconfig(kubeconfig: str | None, *, home: Path | None = None) -> None:
    """Raise CommandFailed if none of the kubeconfig's files is there, and no pod's service account either."""
    paths = [Path(part) for part in kubeconfig.split(os.pathsep) if part] if kubeconfig else []
    default = (home or Path.home()) / ".kube" / "config"
    if any(path.exists() for path in paths or (default,)) or (not paths and _POD_NAMESPACE.exists()):
        return
    named = " and ".join(str(path) for path in paths or (default,))
    words = f"no kubeconfig: {named} is not there; name one with --kubeconfig or KUBECONFIG"
    raise CommandFailed(words, code=ExitCode.NO_CLUSTER)


def default_namespace(target: Target) -> str:
    """Return the namespace of the kubeconfig's context, of the pod where there is no kubeconfig, or default."""
    try:
        contexts, active = kubernetes_config.list_kube_config_contexts(target.kubeconfig)  # type: ignore[no-untyped-call]
    except (kubernetes_config.ConfigException, OSError):
        return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"
    named = next((one for one in contexts if one["name"] == target.context), active)
    return str(named["context"].get("namespace") or "default")


def _pod(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}"


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """Yield lines of any length; the last one needs no end."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
