"""Where a server will listen: a port that nobody else is given."""

from __future__ import annotations

import socket

import pytest

from dormouse_api.listening import hold_port, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::]", "0.0.0.0"])
def test_a_held_port_is_nobodys_until_somebody_names_it(host):
    """Who listens there listens in its holder's sight, and is heard."""
    with hold_port(host) as holder:
        port = holder.getsockname()[1]
        with socket.socket(holder.family) as other, pytest.raises(OSError, match="in use"):
            other.bind(holder.getsockname())
        with listen(host, port), socket.create_connection(("::1" if ":" in host else "127.0.0.1", port)):
            pass


def test_an_address_of_another_machine_cannot_be_held():
    """The error is the system's."""
    with pytest.raises(OSError, match="assign"):
        hold_port("192.0.2.1")
