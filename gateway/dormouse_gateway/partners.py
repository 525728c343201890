"""The doors of other people's programs, Envoy and KEDA, as far as they are open. Owns their start and end."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass

from dormouse_gateway.picker.door import PickerDoor
from dormouse_gateway.picker.service import Core, EndpointPicker, Limits, Proofs
from dormouse_gateway.scaler.door import ScalerDoor
from dormouse_gateway.settings import Settings
from dormouse_gateway.tls import Identity, SelfSigned

_STREAMS_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Partners:
    """Use: start, tell that the gateway serves, say that it ends, stop. None = the door is closed."""

    picker: PickerDoor | None
    scaler: ScalerDoor | None

    async def start(self, host: str, picker_port: int | None, scaler_port: int | None) -> tuple[int | None, int | None]:
        """Listen; return the ports of picker and scaler. Raises RuntimeError when one is taken."""
        return (
            await self.picker.start(host, picker_port or 0) if self.picker else None,
            await self.scaler.start(host, scaler_port or 0) if self.scaler else None,
        )

    async def tell_that_it_serves(self) -> None:
        """Answer calls from now on."""
        await asyncio.gather(*(door.tell(is_serving=True) for door in (self.picker, self.scaler) if door))

    async def say_that_it_ends(self) -> None:
        """Say NOT_SERVING from now on."""
        await asyncio.gather(*(door.say_that_it_ends() for door in (self.picker, self.scaler) if door))

    @property
    def num_taken(self) -> int:
        """Return about how many requests Envoy asked so far."""
        return self.picker.num_taken if self.picker else 0

    async def stop_picker(self, grace_s: float) -> None:
        """Take no questions of Envoy's any more; those that run get `grace_s`."""
        if self.picker:
            await self.picker.stop(grace_s)

    async def stop_scaler(self) -> None:
        """End KEDA's streams, which never end by themselves."""
        if self.scaler:
            await self.scaler.stop(_STREAMS_GRACE_S)


def open_partners(
    settings: Settings, core: Core, proofs: Proofs, *, identity: Identity | None, max_calls: int
) -> Partners:
    """Make the doors whose ports the settings name."""
    picker = scaler = None
    if settings.picker_port is not None:
        limits = Limits(settings.http_timeout_s, settings.default_deadline_s)
        shown = SelfSigned(dt.datetime.now(dt.UTC)) if settings.picker_self_signed else identity
        picker = PickerDoor(EndpointPicker(core, proofs, limits), shown, max_calls=max_calls)
    if settings.scaler_port is not None:
        scaler = ScalerDoor(core.router, identity)
    return Partners(picker, scaler)
