"""How a front binds its ports: a taken one is an error that names the flag."""

from __future__ import annotations

from collections.abc import Callable


def listen(add_port: Callable[[str], int], host: str, port: int, flag: str) -> int:
    """Bind by what adds an address to a server. Raises RuntimeError naming the flag."""
    try:
        return add_port(f"{host}:{port}")
    except RuntimeError as error:
        raise port_error(flag, port, error) from error


def port_error(flag: str, port: int, error: Exception) -> RuntimeError:
    """Return the error that names the flag."""
    return RuntimeError(f"{flag} {port}: cannot listen there; is it taken? ({error})")


def plain_host(host: str) -> str | None:
    """Return the host as asyncio wants it; None = every address, of both families."""
    return None if host in {"[::]", "0.0.0.0"} else host.strip("[]")  # noqa: S104  compared, not bound
