"""What the keys of operator and gateways come from: the mounted Secret. Workers get the public ones only.

After a rotation the seeds of before are there, too: workers that were started with their keys go on to take orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dormouse_api.names import Role
from dormouse_api.tickets import OPERATOR_TO_GATEWAY, BadKey, SharedKey, SigningKey, TicketBook, seeds_of
from dormouse_operator.decide.seals import Seals
from dormouse_operator.settings import SettingsError


@dataclass(frozen=True, slots=True, repr=False)
class Seeds:
    """The seeds, the present one first. Never shown. Methods raise BadKey for one that is too short."""

    operator: tuple[str, ...]
    gateway: tuple[str, ...]

    def __repr__(self) -> str:
        """Show how many."""
        return f"Seeds({len(self.operator)} of the operator, {len(self.gateway)} of gateways)"

    @property
    def operator_keys(self) -> tuple[str, ...]:
        """Return the public keys by which workers may know the operator, the one for new workers first."""
        return tuple(SigningKey(seed, Role.OPERATOR).public for seed in self.operator)

    @property
    def gateway_key(self) -> str:
        """Return the public key by which new workers know gateways."""
        return SigningKey(self.gateway[0], Role.GATEWAY).public

    @property
    def seals(self) -> Seals:
        """Return by what pods are known that an operator made."""
        return Seals(self.operator)

    def tickets_to_workers(self) -> TicketBook:
        """Return what proves to workers that this is the operator."""
        return TicketBook(Role.OPERATOR, [SigningKey(seed, Role.OPERATOR) for seed in self.operator])

    def tickets_to_gateways(self) -> TicketBook:
        """Return the same for gateways."""
        return TicketBook(Role.OPERATOR, [SharedKey(seed, OPERATOR_TO_GATEWAY) for seed in self.gateway])


def read_seeds(directory: Path) -> Seeds:
    """Read the mounted Secret. Raises SettingsError naming the file."""
    seeds = Seeds(_both(directory / "operator-seed"), _both(directory / "gateway-seed"))
    try:
        seeds.tickets_to_workers()
        seeds.tickets_to_gateways()
    except BadKey as error:
        raise SettingsError(f"DORMOUSE_TOKENS_DIR: operator-seed or gateway-seed in {directory}: {error}") from error
    return seeds


def _both(path: Path) -> tuple[str, ...]:
    """Return the seed and, if there is one, that of before."""
    former = path.with_name(f"{path.name}-previous")
    try:
        seed, previous = path.read_text().strip(), former.read_text().strip() if former.exists() else ""
    except OSError as error:
        raise SettingsError(f"DORMOUSE_TOKENS_DIR: {error}") from error
    if not seed:
        raise SettingsError(f"DORMOUSE_TOKENS_DIR: {path} is empty")
    return seeds_of(seed, previous)
