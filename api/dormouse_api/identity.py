"""Who a certificate says that its holder is, and what that one may call. Pure: knows no files, no TLS.

An identity is the one URI of our scheme among a certificate's alternative names:

    dormouse://worker/team-a/llama      role, namespace, name of the deployment (of the release, where it is ours)

Callers dial IP addresses, so a server's name cannot be its address: each role has one name of its own (`server_name`),
which its certificates carry as DNS name and which callers ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dormouse_api.names import (
    CONTROL_SERVICE,
    GATEWAY_CONTROL_SERVICE,
    INFERENCE_SERVICE,
    KV_BLOCKS_SERVICE,
    RELAY_SERVICE,
    Role,
)

SCHEME = "dormouse"
CERT_FILE, KEY_FILE, CA_FILE = "tls.crt", "tls.key", "ca.crt"  # as a process finds them mounted
_PART = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # as Kubernetes names things
_ALLOWED: Mapping[str, frozenset[Role]] = {  # every other service (health, reflection): all that are no worker
    CONTROL_SERVICE: frozenset({Role.OPERATOR}),
    GATEWAY_CONTROL_SERVICE: frozenset({Role.OPERATOR}),
    INFERENCE_SERVICE: frozenset({Role.GATEWAY, Role.CLIENT}),
    RELAY_SERVICE: frozenset({Role.GATEWAY}),
    KV_BLOCKS_SERVICE: frozenset({Role.WORKER}),
}
_CALLERS = frozenset(Role) - {Role.WORKER}


class BadIdentity(ValueError):
    """A certificate names no identity of ours, or more than one; the message shows what it says instead."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who holds a certificate."""

    role: Role
    namespace: str
    name: str

    def __post_init__(self) -> None:
        """Raise BadIdentity on what could not be read back."""
        for field, value in (("namespace", self.namespace), ("name", self.name)):
            if not _PART.fullmatch(value):
                raise BadIdentity(f"{field} is {value!r}; allowed are 1 to 253 of a-z, 0-9, - and ., as in Kubernetes")

    def __str__(self) -> str:
        """Return the URI."""
        return f"{SCHEME}://{self.role}/{self.namespace}/{self.name}"


def parse_identity(uri: str) -> Identity:
    """Return the identity that a URI names. Raises BadIdentity."""
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != SCHEME or len(parts) != 3:
        raise BadIdentity(f"{uri!r} is no identity; allowed is {SCHEME}://ROLE/NAMESPACE/NAME")
    role, namespace, name = parts
    if role not in set(Role):
        raise BadIdentity(f"{uri!r}: the role is {role!r}; allowed are {', '.join(Role)}")
    return Identity(Role(role), namespace, name)


def identity_among(names: Iterable[str]) -> Identity:
    """Return the identity among a certificate's alternative names. Raises BadIdentity unless there is exactly one."""
    uris = [name for name in names if name.startswith(f"{SCHEME}://")]
    if len(uris) != 1:
        raise BadIdentity(f"a certificate names {len(uris)} identities ({SCHEME}://…); allowed is one")
    return parse_identity(uris[0])


def server_name(role: Role) -> str:
    """Return the DNS name that every certificate of the role carries, and that callers of the role ask for."""
    return f"{role}.{SCHEME}.internal"


def refusal(service: str, caller: Identity, own: Identity) -> str:
    """Return why the caller may not call a service (its full name) of `own`, "" if it may.

    Clients reach the workers of their own namespace only: for all others there is the gateway, with its keys. Workers
    reach those of their own deployment.
    """
    allowed = _ALLOWED.get(service, _CALLERS)
    if caller.role not in allowed:
        return f"{service} needs a certificate of the role {' or '.join(sorted(allowed))}; this caller is {caller}"
    if caller.role is Role.CLIENT and caller.namespace != own.namespace:
        return f"{service} is open to clients of the namespace {own.namespace}; this caller is {caller}"
    if caller.role is Role.WORKER and caller != own:
        return f"{service} is open to workers of {own}; this caller is {caller}"
    return ""
