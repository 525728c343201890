"""The real KubeApi: plain mappings over kubernetes.aio's connection. Owns login, paths and time limits.

The generated models of the client library are left out: they refuse unknown fields and cost memory per object.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from dormouse_kube import applied
from dormouse_kube.answers import error_of, events, foreign_errors
from dormouse_kube.api import Kind, Resource, ResourceList, WatchEvent
from dormouse_kube.errors import KubeError, NotFound

_MERGE = "application/merge-patch+json"
_JSON = "application/json"

OnCall = Callable[[str, str, int], None]  # verb, plural, HTTP status (0 = no answer)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Time limits towards the API server, all in seconds."""

    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0  # a whole call, watches excepted
    watch_timeout_s: int = 300  # the server ends a watch after this long; it is then continued
    inactivity_timeout_s: float = 70.0  # bookmarks come about once a minute: a silent watch is a dead one
    chunk_size: int = 500  # objects per page of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One HTTP request before it is signed."""

    verb: str  # as RBAC names it; for metrics and errors
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""
    query: tuple[tuple[str, str], ...] = ()
    content_type: str = _JSON
    body: Resource | str | None = None  # a str is sent as it is

    def __str__(self) -> str:
        """Return what errors call it."""
        return f"{self.verb} {self.path}"

    @property
    def path(self) -> str:
        """Return the path under the API server's address."""
        root = "/apis" if "/" in self.kind.api_version else "/api"
        namespace = ("namespaces", self.namespace) if self.kind.namespaced and self.namespace else ()
        parts = (self.kind.api_version, *namespace, self.kind.plural, self.name, self.subresource)
        return "/".join((root, *(quote(part) for part in parts if part)))


class KubeClient:
    """KubeApi over HTTP. Close it, or use it as a context manager."""

    def __init__(
        self,
        api_client: kubernetes_client.ApiClient,
        *,
        settings: ClientSettings | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        """Take a client that is logged in; `on_call` hears of every answer."""
        self._api_client = api_client
        self._settings = settings or ClientSettings()
        self._on_call = on_call

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        settings: ClientSettings | None = None,
        on_call: OnCall | None = None,
    ) -> Self:
        """Log in with the pod's service account, or, outside of a cluster or when named, with a kubeconfig.

        Raises KubeError when neither is there.
        """
        configuration = kubernetes_client.Configuration()
        try:
            await _login(configuration, kubeconfig=kubeconfig, context=context)
        except (kubernetes_config.ConfigException, OSError, ValueError) as error:
            raise KubeError(f"no credentials for a Kubernetes API server: {error}") from error
        configuration.retries = None  # whoever calls decides; 0 would mean for ever to the library
        return cls(kubernetes_client.ApiClient(configuration), settings=settings, on_call=on_call)

    def __repr__(self) -> str:
        """Show the server."""
        return f"KubeClient({self._api_client.configuration.host})"

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._api_client.close()  # type: ignore[no-untyped-call]  # the library is half typed

    async def get(self, kind: Kind, namespace: str, name: str) -> Resource | None:
        """See KubeApi."""
        try:
            return await self._call(_Request(verb="get", method="GET", kind=kind, namespace=namespace, name=name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "") -> ResourceList:
        """See KubeApi. Reads in pages."""
        pages = [page async for page in self.pages(kind, namespace, label_selector=label_selector)]
        return ResourceList(tuple(item for page in pages for item in page.items), pages[-1].resource_version)

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = ""
    ) -> AsyncIterator[ResourceList]:
        """See KubeApi."""
        token = ""
        while True:
            query = (("limit", str(self._settings.chunk_size)), ("labelSelector", label_selector), ("continue", token))
            page = await self._call(_Request(verb="list", method="GET", kind=kind, namespace=namespace, query=query))
            # items of a list carry neither kind nor version, single objects do: make them alike
            items = ({"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page.get("items") or ())
            yield ResourceList(tuple(items), page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue") or ""
            if not token:
                return

    async def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """See KubeApi."""
        query = (
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(self._settings.watch_timeout_s)),
            ("labelSelector", label_selector),
        )
        request = _Request(verb="watch", method="GET", kind=kind, namespace=namespace, query=query)
        limits = self._settings
        timeout = aiohttp.ClientTimeout(sock_connect=limits.connect_timeout_s, sock_read=limits.inactivity_timeout_s)
        with foreign_errors(str(request)):
            response = await self._send(request, timeout)
            try:
                async for event in events(response.content):
                    yield event
            finally:
                response.close()

    async def create(self, kind: Kind, obj: Resource) -> Resource:
        """See KubeApi."""
        namespace = obj["metadata"].get("namespace")
        query = (("fieldValidation", "Strict"),)
        return await self._call(
            _Request(verb="create", method="POST", kind=kind, namespace=namespace, query=query, body=obj)
        )

    async def apply(self, kind: Kind, obj: Resource, *, field_manager: str, subresource: str = "") -> Resource:
        """See KubeApi."""
        metadata = obj["metadata"]
        return await self._call(
            _Request(
                verb="patch",
                method="PATCH",
                kind=kind,
                namespace=metadata.get("namespace"),
                name=metadata["name"],
                subresource=subresource,
                query=(("fieldManager", field_manager), ("force", "true"), ("fieldValidation", "Strict")),
                content_type=applied.CONTENT_TYPE,
                body=applied.as_yaml({"apiVersion": kind.api_version, "kind": kind.kind, **obj}),
            )
        )

    async def replace(self, kind: Kind, obj: Resource) -> Resource:
        """See KubeApi."""
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace"), metadata["name"]
        return await self._call(
            _Request(verb="update", method="PUT", kind=kind, namespace=namespace, name=name, body=obj)
        )

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Resource:
        """See KubeApi."""
        request = _Request(
            verb="patch", method="PATCH", kind=kind, namespace=namespace, name=name, subresource="status"
        )
        return await self._merge(request, {"status": dict(status)}, resource_version)

    async def patch_scale(
        self, kind: Kind, namespace: str, name: str, *, replicas: int, field_manager: str, resource_version: str = ""
    ) -> Resource:
        """See KubeApi."""
        request = _Request(
            verb="patch",
            method="PATCH",
            kind=kind,
            namespace=namespace,
            name=name,
            subresource="scale",
            query=(("fieldManager", field_manager),),
        )
        return await self._merge(request, {"spec": {"replicas": replicas}}, resource_version)

    async def _merge(self, request: _Request, body: Mapping[str, Any], resource_version: str) -> Resource:
        """Send a JSON merge patch, of the given version only unless that is ""."""
        condition = {"metadata": {"resourceVersion": resource_version}} if resource_version else {}
        return await self._call(dataclasses.replace(request, content_type=_MERGE, body={**condition, **body}))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_period_s: int | None = None
    ) -> Resource | None:
        """See KubeApi. Dependents are collected in the background."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        request = _Request(verb="delete", method="DELETE", kind=kind, namespace=namespace, name=name, body=options)
        try:
            answer = await self._call(request)
        except NotFound:
            return None
        return answer if "deletionTimestamp" in answer.get("metadata", {}) else None  # else a mere Status

    async def _call(self, request: _Request) -> dict[str, Any]:
        """Send the request and return the answer's object."""
        limits = self._settings
        timeout = aiohttp.ClientTimeout(total=limits.request_timeout_s, sock_connect=limits.connect_timeout_s)
        with foreign_errors(str(request)):
            response = await self._send(request, timeout)
            answer: dict[str, Any] = json.loads(await response.read())
            return answer

    async def _send(self, request: _Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Sign and send the request; return the open answer, or raise what it says."""
        method, url, headers, body, _ = await self._api_client.param_serialize(
            request.method,
            request.path,
            query_params=[pair for pair in request.query if pair[1]],
            header_params={"Accept": _JSON, "Content-Type": request.content_type},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        status = 0
        try:
            answer = await self._api_client.call_api(method, url, headers, body, _request_timeout=timeout)
            status = answer.status
        finally:
            if self._on_call:
                self._on_call(request.verb, request.kind.plural, status)
        response: aiohttp.ClientResponse = answer.response
        if status >= 400:
            raise error_of(status, response.headers, await response.read())
        return response


async def _login(
    configuration: kubernetes_client.Configuration, *, kubeconfig: str | None, context: str | None
) -> None:
    """Fill the configuration from the service account if there is one and nothing else is named."""
    if kubeconfig is None and context is None:
        try:
            kubernetes_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except kubernetes_config.ConfigException:
            pass  # not in a cluster
        else:
            return
    await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
        kubeconfig, context=context, client_configuration=configuration, persist_config=False
    )
