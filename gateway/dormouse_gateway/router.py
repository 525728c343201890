"""From a model name to an endpoint. Owns catalogue, pool and activity log, and feeds them from the watches.

Synchronous: no method waits. What is to be closed is told to `on_close`, which must not wait either.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from dormouse_api.short_names import NameRules, ShortNames
from dormouse_gateway import refusals
from dormouse_gateway.activity import ActivityLog, WorkerLoad
from dormouse_gateway.catalogue import Catalogue
from dormouse_gateway.clients.keys import ANYBODY, Caller
from dormouse_gateway.clients.shares import NOBODYS, Flow, Shares
from dormouse_gateway.model import Deployment, Endpoint, EndpointId, Meant, parse_deployment, parse_slice
from dormouse_gateway.routing.breaker import Verdict
from dormouse_gateway.routing.built_in import PrefixAffinity
from dormouse_gateway.routing.policy import NOTHING, Affinity, Demand, RouterPolicy
from dormouse_gateway.workers.pool import NOBODY, EndpointPool
from dormouse_gateway.workers.room import WorkerCapacity
from dormouse_gateway.workers.slot import Ticket
from dormouse_kube.api import Resource
from dormouse_kube.reflector import ObjectKey

_LOG = logging.getLogger(__name__)
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)

_T = TypeVar("_T")

OnClose = Callable[[EndpointId], None]
OnForget = Callable[[Deployment], None]
OnChoice = Callable[[ObjectKey, Affinity], None]
OnEndpoint = Callable[[Endpoint | None, Endpoint | None], None]  # what it was, what it is; None = cannot be called


@dataclass(eq=False, slots=True)
class Lease:
    """A worker for the time of one request, given back however the request ends."""

    ticket: Ticket
    router: Router
    flow: Flow | None = None  # which it counts for

    @property
    def endpoint(self) -> Endpoint:
        """Return the worker."""
        return self.ticket.endpoint

    def advance(self) -> None:
        """Count a message of the answer."""
        if self.ticket.advance():
            self.router.on_change(self.endpoint.deployment)

    def report(self, verdict: Verdict) -> None:
        """Say how it went with the worker; without this, nothing is said about it."""
        self.ticket.verdict = verdict

    def move(self, http_address: str) -> bool:
        """Count the request where another gateway sent it: the worker that was chosen was not to be had.

        Return False where that is the one that was chosen, or none of this deployment that is known.
        """
        if http_address == self.endpoint.http_address:
            return False
        moved = self.router.pool.begin_at(self.endpoint.deployment, http_address, self.ticket.demand)
        if moved is None:
            return False
        self.report(Verdict.REFUSED)
        self.router.give_back(self.ticket)
        self.ticket = moved
        return True

    def give_back(self) -> None:
        """End the request."""
        if self.flow:
            self.router.shares.end(self.endpoint.deployment, self.flow)
        self.router.give_back(self.ticket)

    def __enter__(self) -> Lease:
        """Return the lease."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the worker back."""
        self.give_back()


class Router:
    """Knows which deployments there are and which endpoints serve them."""

    def __init__(
        self,
        *,
        on_close: OnClose,
        on_forget: OnForget = lambda _: None,
        on_choice: OnChoice = lambda _key, _affinity: None,
        policy: RouterPolicy | None = None,
        names: NameRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take who closes connections, who is told that a deployment is gone, who counts choices, and who chooses.

        Which short names there are is set by `names`.
        """
        self.catalogue = Catalogue(ShortNames(names, clock), ShortNames(names, clock))
        self.pool = EndpointPool(policy or PrefixAffinity(), clock)
        self.shares = Shares(clock)
        self.activity = ActivityLog()
        self.is_synced = False  # set once by the program, when everything was listed
        self.on_change: Callable[[ObjectKey], None] = lambda _: (
            None
        )  # told of all that may let a deployment's requests go
        self.on_endpoint: OnEndpoint = lambda _was, _is: None
        self._slices: dict[ObjectKey, dict[ObjectKey, tuple[Endpoint, ...]]] = {}  # by deployment, by slice
        self._slice_of: dict[ObjectKey, ObjectKey] = {}  # slice → deployment
        self._on_close = on_close
        self._on_forget = on_forget
        self._on_choice = on_choice

    def __repr__(self) -> str:
        """Show everything."""
        return f"Router(synced={self.is_synced}, {self.catalogue!r}, {self.pool!r})"

    def on_deployment(self, key: ObjectKey, obj: Resource | None) -> None:
        """Take a change of an InferenceDeployment. Never raises."""
        deployment = _parsed(parse_deployment, obj)
        if deployment:
            self.catalogue.put(deployment)
            self.activity.add(key)
            self._settle(key)
            self.on_change(key)
            return
        gone = self.catalogue.get(key)
        self.catalogue.remove(key)
        self.activity.forget(key)
        self._settle(key)
        self.on_change(key)
        if gone:
            self._on_forget(gone)

    def on_slice(self, key: ObjectKey, obj: Resource | None) -> None:
        """Take a change of an EndpointSlice. Never raises."""
        parsed = _parsed(parse_slice, obj)
        former = self._slice_of.pop(key, None)
        if former:
            del self._slices[former][key]
        if parsed:
            deployment, endpoints = parsed
            self._slice_of[key] = deployment
            self._slices.setdefault(deployment, {})[key] = endpoints
        for deployment in filter(None, {former, parsed[0] if parsed else None}):
            if not self._slices[deployment]:
                del self._slices[deployment]
            if self._settle(deployment):
                self.on_change(deployment)

    def note_load(self, endpoint: Endpoint, load: WorkerLoad | None) -> None:
        """Take what a worker tells of itself, None when it is followed no more."""
        self.activity.note_load(endpoint.deployment, endpoint.pod, load)
        self.pool.tell(endpoint, load)
        self.on_change(endpoint.deployment)

    def resolve(self, model: str, caller: Caller = ANYBODY) -> Meant:
        """Return what the name means. Raises CallError UNAVAILABLE before the first sync, NOT_FOUND.

        What the caller may not use is not there for him: the refusal neither tells nor lists it.
        """
        if not self.is_synced:
            raise refusals.not_synced()
        deployment = self.catalogue.find(model, caller.owns)
        found = Meant(deployment) if deployment else self.catalogue.find_adapter(model, caller.owns)
        if found is None or not self._may_use(caller, found):
            raise refusals.unknown_model(model, sorted((*self.models(caller), *self.adapters(caller))))
        return found

    def models(self, caller: Caller = ANYBODY) -> dict[str, Deployment]:
        """Return what the caller may use, sleeping ones too, by the shortest name under which it answers."""
        known = self.catalogue.deployments()
        named = {self.catalogue.shortest(deployment, caller.owns): deployment for deployment in known}
        return {name: deployment for name, deployment in named.items() if caller.may_use(deployment, name)}

    def adapters(self, caller: Caller = ANYBODY) -> dict[str, Meant]:
        """Return the adapters that the caller may use, by the shortest names under which they answer."""
        all_of_them = (Meant(one, name) for one in self.catalogue.deployments() for name in one.adapters)
        usable = (meant for meant in all_of_them if self._may_use(caller, meant))
        return {self.catalogue.shortest_adapter(meant, caller.owns): meant for meant in usable}

    def _may_use(self, caller: Caller, meant: Meant) -> bool:
        """Return whether the caller may use a model; who may use a base may use its adapters."""
        base = self.catalogue.shortest(meant.deployment, caller.owns)
        if caller.may_use(meant.deployment, base) or not meant.adapter:
            return caller.may_use(meant.deployment, base)
        names = self.catalogue.shortest_adapter(meant, caller.owns), f"{meant.deployment.full_name}:{meant.adapter}"
        return any(caller.may_use(meant.deployment, name) for name in names)

    def lease(
        self,
        deployment: Deployment,
        *,
        need_ready: bool,
        tried: Mapping[EndpointId, int] = NOBODY,
        demand: Demand = NOTHING,
    ) -> Lease:
        """Choose an endpoint for one request. Raises CallError UNAVAILABLE. The lease must be entered.

        Whoever asks for one that does not need to be ready gets a ready one all the same, where there is one.
        """
        ticket = self.pool.acquire(deployment.key, need_ready=need_ready, tried=tried, demand=demand)
        if ticket is None:
            raise refusals.none_ready(deployment) if need_ready else refusals.no_pod(deployment)
        return self._lease(ticket)

    def try_lease(
        self,
        key: ObjectKey,
        batch: WorkerCapacity | None,
        *,
        tried: Mapping[EndpointId, int] = NOBODY,
        like: Endpoint | None = None,
        demand: Demand = NOTHING,
        flow: Flow = NOBODYS,
    ) -> Lease | None:
        """Choose an endpoint that takes requests and, in view of `batch`, has room for one more; None if none is."""
        ticket = self.pool.acquire(key, need_ready=True, tried=tried, like=like, batch=batch, demand=demand)
        if ticket is None:
            return None
        self.shares.start(key, flow)
        return self._lease(ticket, flow)

    def give_back(self, ticket: Ticket) -> None:
        """Take the end of a request; see `Lease`."""
        self._close(self.pool.release(ticket))
        self.on_change(ticket.endpoint.deployment)

    def _settle(self, key: ObjectKey) -> bool:
        """Have the endpoints that slices tell of and the deployment knows as its own; return whether that changed any.

        Whoever may make a pod can give it labels that put it into a slice; into the status it does not come by that.
        """
        deployment = self.catalogue.get(key)
        told = [endpoint for endpoints in self._slices.get(key, {}).values() for endpoint in endpoints]
        wanted = {endpoint.pod: endpoint for endpoint in (_own(deployment, told) if deployment else ())}
        known = {endpoint.pod: endpoint for endpoint in self.pool.endpoints_of(key)}
        for pod in known.keys() - wanted.keys():
            self._close(self.pool.remove(pod))
        for endpoint in wanted.values():
            self._close(self.pool.put(endpoint))
        changed = [pod for pod in known | wanted if known.get(pod) != self.pool.endpoint_of(pod)]
        for pod in changed:
            self.on_endpoint(known.get(pod), self.pool.endpoint_of(pod))
        return bool(changed)

    def _lease(self, ticket: Ticket, flow: Flow | None = None) -> Lease:
        if ticket.affinity is not Affinity.NONE:
            self._on_choice(ticket.endpoint.deployment, ticket.affinity)
        return Lease(ticket, self, flow)

    def _close(self, endpoints: Iterable[EndpointId]) -> None:
        for endpoint in endpoints:
            self._on_close(endpoint)


def _own(deployment: Deployment, told: Iterable[Endpoint]) -> Iterator[Endpoint]:
    """Yield those that the operator made, with what they run; all while an operator of before does not say which."""
    own = deployment.pods
    for endpoint in told:
        if own is None:
            yield endpoint
        elif endpoint.id.pod_uid in own:
            uid = endpoint.id.pod_uid
            yield replace(endpoint, revision=own[uid], role=deployment.roles.get(uid, ""))


def _parsed(parse: Callable[[Resource], _T | None], obj: Resource | None) -> _T | None:
    """Return the parsed object, None if it is gone or malformed: one bad object must not stop the watch."""
    if obj is None:
        return None
    try:
        return parse(obj)
    except _MALFORMED:
        _LOG.exception("left out an object that cannot be read: %s", obj.get("metadata", {}).get("name"))
        return None
