"""What the gateway's keys come from: mounted files. They prove its role to workers, and the operator's to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dormouse_api.names import Role
from dormouse_api.tickets import OPERATOR_TO_GATEWAY, BadKey, SharedKey, SigningKey, TicketBook, TicketCheck, seeds_of
from dormouse_gateway.clients.salts import Salts
from dormouse_gateway.variables import BadSetting


@dataclass(frozen=True, slots=True, repr=False)
class Seeds:
    """What the gateway's keys come from, the present one first: for its tickets to workers, the operator's to it."""

    gateway: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show how many."""
        return f"Seeds({len(self.gateway)})"

    def tickets(self) -> TicketBook:
        """Return what proves the gateway's role to workers. Raises BadKey."""
        return TicketBook(Role.GATEWAY, [SigningKey(seed, Role.GATEWAY) for seed in self.gateway])

    def introductions(self) -> TicketBook:
        """Return what lets one worker ask another for blocks of its KV cache. Raises BadKey."""
        return TicketBook(Role.WORKER, [SigningKey(seed, Role.GATEWAY) for seed in self.gateway])

    def proofs(self, own_addresses: Collection[str]) -> TicketCheck:
        """Return who tells what callers prove to this gateway. Raises BadKey."""
        keys = [SharedKey(seed, OPERATOR_TO_GATEWAY) for seed in self.gateway]
        return TicketCheck(own_addresses, {Role.OPERATOR: [key.check for key in keys]})

    def salts(self) -> Salts:
        """Return what keeps the cached prefixes of different keys apart."""
        return Salts(self.gateway[0] if self.gateway else "")


def read_seeds(directory: Path | None) -> Seeds:
    """Read the mounted files. Raises BadSetting when one is missing, or too short to be a secret."""
    if directory is None:
        return Seeds()
    seeds = Seeds(seeds_of(_seed(directory / "gateway-seed"), _former_seed(directory / "gateway-seed-previous")))
    try:
        seeds.proofs(())
    except BadKey as error:
        raise BadSetting(f"DORMOUSE_TOKENS_DIR: {directory / 'gateway-seed'}: {error}") from error
    return seeds


def _former_seed(path: Path) -> str:
    """Return what was the seed before the last rotation, "" if there is none."""
    return _text_of(path) if path.exists() else ""


def _seed(path: Path) -> str:
    text = _text_of(path)
    if not text:
        raise BadSetting(f"DORMOUSE_TOKENS_DIR: {path} is empty")
    return text


def _text_of(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"DORMOUSE_TOKENS_DIR holds no readable file {path.name}: {error}") from error
