"""A real worker beside a real gateway: front and engine with the small trained model, in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dormouse_api.testing_tickets import POD_UID
from tests.integration.conftest import Worker


@asynccontextmanager
async def real_worker(
    model: Path, log: Path, *flags: str, pod_uid: str = POD_UID, port: int = 0
) -> AsyncIterator[Worker]:
    """Yield a worker that has measured itself, and serves once `start` tells it to."""
    with log.open("wb") as output:
        worker = Worker(model, output, *flags, pod_uid=pod_uid, port=port)
        try:
            await asyncio.to_thread(worker.report)
            yield worker
        finally:
            await asyncio.to_thread(worker.close)
