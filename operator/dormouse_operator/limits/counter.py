"""Counts what keys used at all gateways, and says whether they may use more. Knows neither gRPC nor Kubernetes.

Each gateway owns what it used and tells all of it when its stream begins: so an operator that has just started knows
what those that are there used, and counts nothing twice. What gateways that are gone used is kept here, and for limits
of a day in the InferenceKey's status (`base`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dormouse_api.quotas import NEVER, Clocks, DayUse, Ledger, Quota, Use, Verdict, judge

_FORGET_S = 60.0  # between two looks for what needs not be remembered


@dataclass(slots=True)
class _Counted:
    """What one key used."""

    ledgers: dict[str, Ledger] = field(default_factory=dict)  # by gateway
    base: DayUse = NEVER  # used on this day, and in no ledger

    def today(self, day: int) -> Use:
        """Return what was used on a day."""
        total = self.base.use if self.base.day == day else Use()
        for ledger in self.ledgers.values():
            if ledger.today.day == day:
                total = total.plus(ledger.today.use)
        return total


class LimitCounter:
    """What every key with limits used."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        base: Callable[[str], DayUse | None] = lambda _: None,
    ) -> None:
        """Take a clock that does not jump, one that knows the day, and what is recorded of a key's day."""
        self._clock = clock
        self._wall = wall
        self._base = base
        self._keys: dict[str, _Counted] = {}
        self._forgot_s = clock()

    def __repr__(self) -> str:
        """Show of how many keys it knows something."""
        return f"LimitCounter({len(self._keys)} keys)"

    def restore(self, gateway: str, key: str, ledger: Ledger) -> None:
        """Take all that a key used at a gateway: in the place of what was known of that."""
        counted = self._counted(key)
        if gateway not in counted.ledgers and counted.base.day == ledger.today.day:
            (day, left), use = counted.base, ledger.today.use
            left = Use(max(0, left.requests - use.requests), max(0, left.tokens - use.tokens))
            counted.base = DayUse(day, left)
        counted.ledgers[gateway] = ledger

    def ask(self, gateway: str, key: str, quota: Quota, asked: Use) -> Verdict:
        """Say whether a key may use so much at a gateway; if so it is counted."""
        clocks = self._clocks()
        self._forget_now_and_then(clocks)
        counted = self._counted(key)
        verdict = judge(quota, counted.ledgers.values(), counted.today(clocks.day), asked, clocks)
        if verdict.is_granted:
            self.add(gateway, key, asked, age_s=0.0)
        return verdict

    def add(self, gateway: str, key: str, use: Use, *, age_s: float) -> None:
        """Count what was used so long ago."""
        clocks = self._clocks()
        ledger = self._counted(key).ledgers.setdefault(gateway, Ledger())
        ledger.forget(clocks.now_s)
        ledger.add(use, at_s=clocks.now_s - age_s, day=clocks.day)

    def days(self) -> Iterator[tuple[str, DayUse]]:
        """Yield what every key used today."""
        day = self._clocks().day
        for key, counted in self._keys.items():
            yield key, DayUse(day, counted.today(day))

    def _counted(self, key: str) -> _Counted:
        if key not in self._keys:
            self._keys[key] = _Counted(base=self._base(key) or NEVER)
        return self._keys[key]

    def _clocks(self) -> Clocks:
        return Clocks(self._clock(), self._wall())

    def _forget_now_and_then(self, clocks: Clocks) -> None:
        if clocks.now_s < self._forgot_s + _FORGET_S:
            return
        self._forgot_s = clocks.now_s
        for counted in self._keys.values():
            for gateway in [name for name, one in counted.ledgers.items() if one.is_idle(clocks.now_s, clocks.day)]:
                del counted.ledgers[gateway]
        kept = {key: one for key, one in self._keys.items() if one.ledgers or one.base.day == clocks.day}
        self._keys = kept
