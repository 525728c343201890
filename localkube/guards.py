"""Enforces NetworkPolicies: keeps copies of what they speak of, and the nft table of each node as they say.

Where no policy selects a pod, and before the API server has told a pod's address (some tenths of a second after it
starts), everything passes. Connections that were let through go on when a policy changes.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from localkube import host, nft, second
from localkube.errors import ApiError, HostError
from localkube.policies import Labels, Pod, Policy, Raw, compile_guards, parse_pod, parse_policy

PODS = "/api/v1/pods"
NAMESPACES = "/api/v1/namespaces"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
WATCH_S = 300
RETRY_S = 1.0
GATHER_S = 0.02  # for changes that come together
T = TypeVar("T")
Place = tuple[str, ...]  # the words before a command that enter a node's network


class Api(Protocol):
    """What is asked of the API server; each call may raise ApiError."""

    def get(self, path: str) -> Any:
        """Return an object or a list."""

    def watch(self, path: str, *, timeout_s: int, version: str) -> Iterable[dict[str, Any]]:
        """Yield what changes after this version, for at most `timeout_s`."""


class Copies(Generic[T]):
    """The objects of one collection as last heard of. One thread writes; `items` is replaced, never changed."""

    def __init__(self, api: Api, path: str, parse: Callable[[Raw], T], changed: threading.Event) -> None:
        self._api = api
        self._path = path
        self._parse = parse
        self._changed = changed
        self.items: Mapping[str, T] = {}  # by UID
        self.is_listed = False

    def __repr__(self) -> str:
        return f"Copies({self._path}, {len(self.items)})"

    def follow(self) -> None:
        """List, then take what changes until the server ends the watch. Raises ApiError."""
        listing = self._api.get(self._path)
        self._set({item["metadata"]["uid"]: self._parse(item) for item in listing["items"]})
        version = listing["metadata"]["resourceVersion"]
        for event in self._api.watch(self._path, timeout_s=WATCH_S, version=version):
            if event["type"] == "ERROR":
                raise ApiError(f"watch of {self._path}: {event['object'].get('message')}")
            self._take(event["object"], is_gone=event["type"] == "DELETED")

    def follow_for_ever(self, log: Callable[[str], None]) -> None:
        """Follow again and again, whatever goes wrong."""
        pause = threading.Event()
        while True:
            try:
                self.follow()
            except ApiError as error:
                log(f"will list again: {error}")
                pause.wait(RETRY_S)

    def _take(self, item: Raw, *, is_gone: bool) -> None:
        uid = item["metadata"]["uid"]
        others = {key: value for key, value in self.items.items() if key != uid}
        self._set(others if is_gone else {**others, uid: self._parse(item)})

    def _set(self, items: Mapping[str, T]) -> None:
        """Keep the items, and tell if that is news: most changes of pods are no affair of policies."""
        if items != self.items or not self.is_listed:
            self.items, self.is_listed = items, True
            self._changed.set()


class Guards:
    """Keeps the tables. Owns the copies, and what it last loaded where."""

    def __init__(
        self,
        api: Api,
        *,
        load: Callable[[Place, str], None],
        places: Callable[[], list[Place]],
        changed: threading.Event,
    ) -> None:
        self.pods: Copies[Pod | None] = Copies(api, PODS, parse_pod, changed)
        self.namespaces: Copies[tuple[str, Labels]] = Copies(api, NAMESPACES, _named_labels, changed)
        self.policies: Copies[Policy] = Copies(api, POLICIES, parse_policy, changed)
        self._load = load
        self._places = places
        self._loaded: dict[Place, str] = {}

    def __repr__(self) -> str:
        return f"Guards({self.pods}, {self.policies})"

    @property
    def copies(self) -> tuple[Copies[Any], ...]:
        """Return all that has to be followed."""
        return (self.pods, self.namespaces, self.policies)

    def reconcile(self) -> bool:
        """Load what differs from what is loaded; tell whether everything is known that this takes. Raises HostError."""
        if not all(each.is_listed for each in self.copies):
            return False
        pods = [pod for pod in self.pods.items.values() if pod]
        namespaces = dict(self.namespaces.items.values())
        text = nft.table(compile_guards(pods, namespaces, self.policies.items.values()))
        for place in self._places():
            if self._loaded.get(place) != text:
                self._load(place, text)
                self._loaded[place] = text
        return True


def _named_labels(raw: Raw) -> tuple[str, Labels]:
    return raw["metadata"]["name"], raw["metadata"].get("labels") or {}


def node_networks() -> list[Place]:
    """Return how each node's network is entered."""
    return [(), *([second.ENTER] if second.network_exists() else [])]


def load_table(place: Place, text: str) -> None:
    """Replace the table of one node. Raises HostError with nft's words."""
    command = [*place, host.program("nft"), "-f", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"`{' '.join(command)}` failed: {done.stderr.strip()[:2000]}")


def run(api: Api, *, ready: Path, log: Callable[[str], None]) -> None:
    """Serve until the process ends; `ready` is made after the first table."""
    changed = threading.Event()
    guards = Guards(api, load=load_table, places=node_networks, changed=changed)
    for copies in guards.copies:
        threading.Thread(target=copies.follow_for_ever, args=(log,), daemon=True).start()
    pause = threading.Event()
    while True:
        changed.wait()
        pause.wait(GATHER_S)
        changed.clear()
        try:
            if guards.reconcile():
                ready.touch()
        except HostError as error:
            log(f"will be loaded again: {error}")
            pause.wait(RETRY_S)
            changed.set()
