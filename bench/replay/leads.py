"""An operator's right to act that is never lost."""

from __future__ import annotations

import asyncio


class Leads:
    """Leads for ever."""

    epoch, leads = 1, True

    def check(self) -> None:
        """Do nothing: it may act."""

    async def acquire(self) -> None:
        """Return at once."""

    async def keep(self) -> None:
        """Go on until cancelled."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Return at once."""

    async def raise_above(self, epoch: int) -> None:
        """Outrank an epoch."""
        self.epoch = epoch + 1
