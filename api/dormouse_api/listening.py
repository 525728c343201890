"""Where a server listens: one address, or every one of the machine."""

from __future__ import annotations

import socket

EVERYWHERE = frozenset({"[::]", "0.0.0.0"})  # noqa: S104  # compared, not bound


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; [::] and 0.0.0.0 are every address, IPv6 where the machine has it. Raises OSError."""
    if host in EVERYWHERE:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    address = host.strip("[]")
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
