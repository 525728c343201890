"""Single variables of an environment, each within its limits. Knows none by name, and reads what it is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MANY = 10**15
_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)+(:[0-9]{1,5})?")
_BOOLEANS = {"true": True, "false": False}


class BadSetting(Exception):
    """A setting cannot be used; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads single variables; what is missing takes the default."""

    given: Mapping[str, str]

    def port(self, name: str, default: int) -> int:
        """Return a port from 0 to 65535."""
        return self.number(name, default, most=65535)

    def port_or_none(self, name: str) -> int | None:
        """Return a port as above, None if none is given."""
        return self.port(name, 0) if name in self.given else None

    def number(self, name: str, default: int, *, least: int = 0, most: int = _MANY) -> int:
        """Return a whole number from `least` to `most`."""
        text = self.given.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MANY)) and least <= int(text) <= most):
            raise BadSetting(f"{name} is {text!r}; allowed are whole numbers from {least} to {most}")
        return int(text)

    def hosts(self, name: str) -> frozenset[str]:
        """Return names of hosts, small letters."""
        hosts = [host.strip().lower() for host in self.given.get(name, "").split(",") if host.strip()]
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise BadSetting(f"{name} has {host!r}; allowed are NAME, NAME:PORT and *.NAME, separated by commas")
        return frozenset(hosts)

    def path(self, name: str) -> Path | None:
        """Return a path, None if none is given. Whether anything is there shows later."""
        return Path(self.given[name]) if name in self.given else None

    def seconds(self, name: str, default: float, *, least: float) -> float:
        """Return a time from `least` to a day."""
        value = self._decimal(name, default)
        if not least <= value <= 86400:
            raise BadSetting(f"{name} is {self.given[name]!r}; allowed are seconds from {least:g} to 86400")
        return value

    def factor(self, name: str, default: float) -> float:
        """Return a number from 1 to 100."""
        value = self._decimal(name, default)
        if not 1 <= value <= 100:
            raise BadSetting(f"{name} is {self.given[name]!r}; allowed are numbers from 1 to 100")
        return value

    def _decimal(self, name: str, default: float) -> float:
        """Return a number; one that is none is within no limits."""
        try:
            return float(self.given.get(name, default))
        except ValueError:
            return float("nan")

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of these words."""
        text = self.given.get(name, default).lower()
        if text not in allowed:
            raise BadSetting(f"{name} is {text!r}; allowed are {', '.join(allowed)}")
        return text

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        text = self.given.get(name, str(default)).lower()
        if text not in _BOOLEANS:
            raise BadSetting(f"{name} is {text!r}; allowed are true and false")
        return _BOOLEANS[text]
