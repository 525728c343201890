"""Who may use the device of a pool's slot: what a grant is, and what each call may do with it. Pure.

    nothing ──GrantDevice──▶ granted ──RevokeDevice, while the worker holds no memory──▶ nothing

The slot epoch counts the slot's holders: what is older than the highest that was heard of changes nothing. A worker
without --device-grants needs no grant and takes none. `grants` owns what holds now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """The right to use a device, for one slot and one of its holders."""

    slot: str
    slot_epoch: int
    budget_bytes: int = 0  # of the device's memory for this worker; 0 = as its settings say
    device: str = ""  # as the claim's driver calls it; "" = any
    reserved_bytes: int = 0  # of the device, for others: bounds an engine where no budget does
    awake_per_slot: int = 1  # who divide what is left

    def bound(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings of an engine that is started under this grant."""
        own = settings.device_memory_budget_bytes
        budget = min(own, self.budget_bytes) if own and self.budget_bytes else own or self.budget_bytes
        device = self.device or settings.expected_device
        return msgspec.structs.replace(
            settings,
            device_memory_budget_bytes=budget,
            device_memory_reserve_bytes=self.reserved_bytes,
            device_memory_sharers=self.awake_per_slot,
            expected_device=device,
        )

    @property
    def words(self) -> str:
        """Return how an engine that is started under it is bounded."""
        if self.budget_bytes:
            return f"within {self.budget_bytes} bytes"
        return f"beside {self.reserved_bytes} bytes for others" if self.reserved_bytes else "without a budget"

    def is_within(self, other: DeviceGrant) -> bool:
        """Return whether an engine that was started under this grant takes no more than the other allows."""
        if not other.budget_bytes:
            return True
        if self.budget_bytes or not self.reserved_bytes:
            return 0 < self.budget_bytes <= other.budget_bytes
        return self.reserved_bytes >= other.reserved_bytes and self.awake_per_slot >= other.awake_per_slot


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker knows of its right to use a device."""

    needs_grant: bool
    grant: DeviceGrant | None = None
    slot_epoch: int = 0  # the highest that was heard of
    revoked_epoch: int = 0  # at which the last grant was taken back; 0 = none was
    started_under: DeviceGrant | None = None  # what the engine process was started under; None = none was, or is there

    def granted(self, grant: DeviceGrant) -> Standing:
        """Return what holds once a grant was taken. Only where `why_not_granted` has no objection."""
        return replace(self, grant=grant, slot_epoch=grant.slot_epoch)

    def revoked(self, slot_epoch: int) -> Standing:
        """Return what holds once the grant was taken back. Only where `why_not_revoked` has no objection."""
        return replace(self, grant=None, slot_epoch=slot_epoch, revoked_epoch=slot_epoch)

    def why_not_granted(self, wanted: DeviceGrant) -> str:
        """Return why a grant is refused, "" if it is not."""
        if not self.needs_grant:
            return "this worker was started without --device-grants"
        if why := self._why_stale(wanted.slot_epoch):
            return why
        if wanted.slot_epoch == self.revoked_epoch:
            return f"slot_epoch {wanted.slot_epoch} was revoked; a new turn has a higher one"
        has, started = self.grant, self.started_under
        if has is not None and has.slot_epoch == wanted.slot_epoch and has != wanted:
            return f"slot_epoch {wanted.slot_epoch} was granted already, with other words: {has}"
        if started is not None and {started.device, wanted.device}.isdisjoint({""}) and started.device != wanted.device:
            return f"device is {wanted.device!r}, its engine was started on {started.device!r}: Sleep level 3 first"
        return ""

    def why_not_revoked(self, slot_epoch: int, engine: EngineStatus) -> str:
        """Return why the grant is not taken back, "" if it is. Without one nothing happens."""
        if not self.needs_grant:
            return "this worker was started without --device-grants"
        if why := self._why_stale(slot_epoch):
            return why
        if self.grant is not None and holds_memory(engine):
            return "the worker holds memory of the device: Sleep first, of weights and kv_cache"
        return ""

    def why_not_used(self, call: str) -> str:
        """Return why a call that takes the device's memory is refused, "" if it is not."""
        if not self.needs_grant:
            return ""
        if self.grant is None:
            return f"{call} needs a grant of the device (GrantDevice), and this worker has none"
        started, budget_bytes = self.started_under, self.grant.budget_bytes
        if started is None or started.is_within(self.grant):
            return ""
        words = f"{call}: budget_bytes of the grant is {budget_bytes}, its engine was started {started.words}"
        return f"{words}: Sleep level 3 first"

    def starts_again(self, died_in: State) -> bool:
        """Return whether an engine that died is started again: where it needs a grant, not beside who is awake now."""
        return not self.needs_grant or (self.grant is not None and died_in is not State.ASLEEP)

    def _why_stale(self, slot_epoch: int) -> str:
        if slot_epoch >= self.slot_epoch:
            return ""
        return f"slot_epoch is {slot_epoch}, but this worker has seen {self.slot_epoch}; the slot has another turn"


def holds_memory(engine: EngineStatus) -> bool:
    """Return whether a worker may hold more of its device than the residue of a sleeper."""
    sleeps = engine.state is State.ASLEEP and set(engine.sleeping_tags) == set(TAGS)
    return not (sleeps or engine.state is State.STANDBY)
