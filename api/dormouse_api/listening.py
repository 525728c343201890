"""Where a server listens: one address, or every one of the machine."""

from __future__ import annotations

import socket

EVERYWHERE = frozenset({"[::]", "0.0.0.0"})  # noqa: S104  # compared, not bound


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; [::] and 0.0.0.0 are every address, IPv6 where the machine has it. Raises OSError."""
    address, family = _place(host)
    return socket.create_server(
        (address, port), family=family, dualstack_ipv6=not address and family is socket.AF_INET6
    )


def hold_port(host: str) -> socket.socket:
    """Return a socket that has a port which was free, and does not listen. Raises OSError.

    While it is open nobody who asks for any port is given this one; who names it can listen there.
    """
    address, family = _place(host)
    holder = socket.socket(family)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not address and family is socket.AF_INET6:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    return holder


def _place(host: str) -> tuple[str, socket.AddressFamily]:
    if host in EVERYWHERE:
        return "", socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    address = host.strip("[]")
    return address, socket.AF_INET6 if ":" in address else socket.AF_INET
