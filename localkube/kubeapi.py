"""The few calls that localkube itself makes to its API server, with the standard library only."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localkube import spec
from localkube.errors import ApiError
from localkube.probes import tls_context

TIMEOUT_S = 10.0
FIELD_MANAGER = "localkube"


class KubeApi:
    """A client with one user's certificate; every call opens its own connection, so it may be used from threads."""

    def __init__(self, pki: Path, user: str) -> None:
        self._context = tls_context(pki / "ca.crt", pki / user)
        self._user = user

    def __repr__(self) -> str:
        return f"KubeApi({spec.API_URL} as {self._user})"

    @contextmanager
    def _answer(
        self, method: str, path: str, *, body: Any = None, content_type: str = "application/json", timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(spec.NODE_IP, spec.API_PORT, context=self._context, timeout=timeout_s)
        payload = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, payload, {"Content-Type": content_type, "Accept": "application/json"})
            answer = connection.getresponse()
            if answer.status >= 400:
                text = answer.read().decode("utf-8", "replace")
                raise ApiError(f"{method} {path}: {answer.status} {text[:500]}", status=answer.status)
            yield answer
        except (OSError, http.client.HTTPException, ssl.SSLError) as error:
            raise ApiError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the object or list at a path; raises ApiError."""
        with self._answer("GET", path, timeout_s=TIMEOUT_S) as answer:
            return json.load(answer)

    def create(self, path: str, value: dict[str, Any]) -> None:
        """Create an object in the collection at a path; raises ApiError (status 409 if it exists)."""
        with self._answer("POST", path, body=value, timeout_s=TIMEOUT_S):
            return

    def delete(self, path: str) -> None:
        """Delete an object; raises ApiError (status 404 if it is gone)."""
        with self._answer("DELETE", path, timeout_s=TIMEOUT_S):
            return

    def apply(self, path: str, value: dict[str, Any]) -> None:
        """Create the object or bring it to this form (server-side apply); raises ApiError."""
        query = f"{path}?fieldManager={FIELD_MANAGER}&force=true"
        kind = "application/apply-patch+yaml"
        with self._answer("PATCH", query, body=value, content_type=kind, timeout_s=TIMEOUT_S):
            return

    def watch(self, path: str, *, timeout_s: int, version: str = "") -> Iterator[dict[str, Any]]:
        """Yield the events of a collection until the server ends the watch after `timeout_s`; raises ApiError.

        With `version` those after it, else first one for each object that there is.
        """
        query = f"{path}?watch=true&timeoutSeconds={timeout_s}&resourceVersion={version}"
        with self._answer("GET", query, timeout_s=timeout_s + TIMEOUT_S) as answer:
            yield from read_events(path, answer)


def read_events(path: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events of a watch; raises ApiError where the server broke off within one."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ApiError(f"the watch of {path} broke off within an event") from error


PLURALS = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "StorageClass": "storageclasses"}


def object_path(value: dict[str, Any]) -> str:
    """Return the URL path of a cluster-scoped object of an API group."""
    return f"/apis/{value['apiVersion']}/{PLURALS[value['kind']]}/{value['metadata']['name']}"
