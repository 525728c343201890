"""Whether a request may have a place at a model's workers, beside those of other keys. Reads router and shares."""

from __future__ import annotations

from collections.abc import Collection

from dormouse_gateway.clients.shares import Flow
from dormouse_gateway.model import Deployment
from dormouse_gateway.router import Router
from dormouse_gateway.workers.room import WorkerCapacity
from dormouse_kube.reflector import ObjectKey


class Places:
    """The places at the workers of all models."""

    def __init__(self, router: Router, worker_queue: int) -> None:
        """Take how many requests beyond its batch a worker may have."""
        self._router = router
        self._worker_queue = worker_queue

    def batch(self, deployment: Deployment) -> WorkerCapacity:
        """Return what each worker of a deployment may have."""
        return WorkerCapacity(deployment.max_num_seqs, self._worker_queue)

    def may_start(self, key: ObjectKey, flow: Flow, batch: WorkerCapacity) -> bool:
        """Return whether a flow may run one more, beside others that use the model."""
        return self._router.shares.may_start(key, flow, lambda: batch.max_running * self._router.pool.num_ready(key))

    def is_next(self, key: ObjectKey, flow: Flow, batch: WorkerCapacity, *, waiting: Collection[Flow] | None) -> bool:
        """Return whether a request that just came may go at once: those who wait, if any, may not because of shares.

        None as `waiting`: somebody waits for a particular worker.
        """
        if waiting is None or not self.may_start(key, flow, batch):
            return False
        return not any(self.may_start(key, other, batch) for other in waiting)
