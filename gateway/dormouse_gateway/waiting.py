"""Where a call that lost its worker waits for another one. The seam to whoever holds requests."""

from __future__ import annotations

from typing import Protocol

from dormouse_gateway.model import Deployment


class WaitForWorker(Protocol):
    """Waits on behalf of one call."""

    async def __call__(self, deployment: Deployment, deadline: float) -> bool:
        """Return True once a worker of the deployment takes requests, or at once if one does.

        Return False at once if none is to be expected, and at the latest by the deadline (on the proxy's clock).
        """


async def nobody_comes(deployment: Deployment, deadline: float) -> bool:
    """Expect no worker."""
    del deployment, deadline
    return False
