"""For tests: a seed for each role, its public key, and tickets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dormouse_api.names import Role
from dormouse_api.tickets import (
    OPERATOR_TO_GATEWAY,
    Proof,
    SharedKey,
    SigningKey,
    TicketBook,
    TicketCheck,
    public_check,
)

OPERATOR_SEED = "the seed of the operator, of tests only"
GATEWAY_SEED = "the seed of gateways, also of tests only"
SEEDS: Mapping[Role, str] = {Role.OPERATOR: OPERATOR_SEED, Role.GATEWAY: GATEWAY_SEED}
STRANGE_SEED = "what somebody guessed who has no seed at all"
POD_UID = "pod-uid"
ADDRESSES = ("127.0.0.1", "::1")  # of gateways in tests


def public_key(role: Role, seed: str = "") -> str:
    """Return what workers check the role's tickets with."""
    return SigningKey(seed or SEEDS[role], role).public


def book(role: Role, seed: str = "") -> TicketBook:
    """Return who makes the role's tickets to workers."""
    return TicketBook(role, [SigningKey(seed or SEEDS[role], role)])


def proof(role: Role, audience: str = POD_UID, seed: str = "") -> Proof:
    """Return metadata that proves the role to the worker of this pod."""
    return book(role, seed).proof(audience)


def introduction(audience: str = POD_UID, seed: str = GATEWAY_SEED) -> Proof:
    """Return metadata by which a gateway lets a worker ask the worker of this pod for blocks of its KV cache."""
    return TicketBook(Role.WORKER, [SigningKey(seed, Role.GATEWAY)]).proof(audience)


def knows(*roles: Role, audience: str = POD_UID, clock: Callable[[], float] = time.time) -> TicketCheck:
    """Return a worker's check of these roles."""
    return TicketCheck([audience], {role: [public_check(public_key(role))] for role in roles}, clock=clock)


def book_to_gateways(seed: str = GATEWAY_SEED) -> TicketBook:
    """Return who makes the operator's tickets to gateways of this seed."""
    return TicketBook(Role.OPERATOR, [SharedKey(seed, OPERATOR_TO_GATEWAY)])


def environment(pod_uid: str = POD_UID) -> dict[str, str]:
    """Return the variables of a worker that knows both roles."""
    keys = {"DORMOUSE_OPERATOR_KEY": public_key(Role.OPERATOR), "DORMOUSE_GATEWAY_KEY": public_key(Role.GATEWAY)}
    return {"DORMOUSE_POD_UID": pod_uid, **keys}
