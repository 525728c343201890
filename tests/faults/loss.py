"""Packets between two programs on this machine get lost: by a table of nftables of our own, for one port."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_RULES = """
table inet {table} {{
    counter lost {{ }}
    chain input {{
        type filter hook input priority 0;
        iifname lo tcp dport {port} numgen random mod 100 < {percent} counter name lost drop
        iifname lo tcp sport {port} numgen random mod 100 < {percent} counter name lost drop
    }}
}}
"""


class Loss:
    """A share of the packets to and from one port of loopback gets lost."""

    def __init__(self, table: str) -> None:
        """Take the name of the table that drops them."""
        self._table = table

    @classmethod
    @contextmanager
    def running(cls, port: int, percent: int) -> Iterator[Loss]:
        """Lose so many of a hundred packets, in each direction, while the context lasts."""
        loss = cls(f"dormouse-loss-{port}")
        _nft("-f", "-", rules=_RULES.format(table=loss._table, port=port, percent=percent))
        try:
            yield loss
        finally:
            _nft("delete", "table", "inet", loss._table)

    @property
    def num_lost(self) -> int:
        """Return how many packets were lost so far."""
        told = json.loads(_nft("-j", "list", "counter", "inet", self._table, "lost"))
        return sum(item["counter"]["packets"] for item in told["nftables"] if "counter" in item)


def _nft(*arguments: str, rules: str = "") -> str:
    done = subprocess.run(["nft", *arguments], input=rules, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
