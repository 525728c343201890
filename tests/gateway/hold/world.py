"""A holder with its router, and callers over them, without a socket."""

import asyncio

from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.hold.holder import Holder
from dormouse_gateway.hold.terms import HoldLimits, HoldSettings
from dormouse_gateway.hold.wait import HoldTicket
from dormouse_gateway.router import Router
from dormouse_gateway.testing.slices import slice_of
from dormouse_gateway.testing.workers import NAMESPACE, infd, pod
from dormouse_kube.reflector import ObjectKey

TINY, POD = ObjectKey(NAMESPACE, "tiny"), ObjectKey(NAMESPACE, "tiny-0")
READY, ASLEEP = WorkerLoad(0, 0, 0.0, is_ready=True), WorkerLoad(0, 0, 0.0, is_ready=False)
MADE = ("p", "new", *(f"p{number}" for number in range(20)))  # UIDs of the pods that the operator made
SETTINGS = HoldSettings(
    limits=HoldLimits(max_bytes=1000, max_total_requests=100, max_total_bytes=1000),
    saturated_timeout_s=30.0,
    worker_queue=0,
)


class CountingRouter(Router):
    """Counts how often it is asked for a worker."""

    num_asked = 0

    def try_lease(self, *args, **kwargs):
        self.num_asked += 1
        return super().try_lease(*args, **kwargs)


class World:
    """A model with one worker, which sleeps, and who waits for it."""

    def __init__(self, max_num_seqs=2, *, hold=SETTINGS):
        self.unwanted, self.ends = [], []
        self.router = CountingRouter(on_close=lambda _: None)
        self.router.is_synced = True
        self.holder = Holder(
            self.router, hold, on_unwanted=self.unwanted.append, on_end=lambda *end: self.ends.append(end)
        )
        self.put_deployment(engine={"maxNumSeqs": max_num_seqs})
        self.put_pod()
        self.tell(ASLEEP)
        self.got = []  # who got a worker, in order

    def put_deployment(self, status=None, **spec):
        obj = infd("tiny", **spec) | {"status": dict(status or {})}
        obj["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        obj["status"]["pods"] = [{"name": "tiny-0", "uid": uid, "revision": "r1"} for uid in MADE]
        self.router.on_deployment(TINY, obj)

    def put_pod(self, uid="p"):
        obj = pod("tiny-0", "tiny", ready=False)
        obj["metadata"]["uid"] = uid
        self.router.on_slice(POD, slice_of(obj))
        self.endpoint = self.router.pool.endpoint_of(POD)

    def tell(self, load):
        self.router.note_load(self.endpoint, load)

    def ask(self, name, *, seconds=60.0, until=None):
        """Return a task that asks for a worker and keeps it until the event is set."""
        return asyncio.create_task(self._ask(name, seconds, until or asyncio.Event()))

    async def _ask(self, name, seconds, until):
        wait = HoldTicket(10, asyncio.get_running_loop().time() + seconds)
        with await self.holder.lease(self.router.catalogue.get(TINY), wait):
            self.got.append(name)
            await until.wait()
        return wait

    def go_on(self, *, seconds=60.0):
        """Return a task that asks for a worker for the rest of what the one here began and just lost."""
        return asyncio.create_task(self._go_on(seconds))

    async def _go_on(self, seconds):
        wait, lost = HoldTicket(10, self.holder.clock() + seconds), self.router.pool.endpoint_of(POD)
        deployment, tried = self.router.catalogue.get(TINY), {lost.id: lost.openings}
        with await self.holder.lease_heir(deployment, wait, like=lost, tried=tried):
            self.got.append("heir")

    def is_wanted(self):
        """Return whether the operator is told that somebody waits for a wake."""
        activity = self.router.activity.activity(TINY)
        return activity is not None and activity.is_wanted

    def outstanding(self):
        return self.router.pool.in_flight().total()

    def check(self):
        self.holder.check_integrity()
        line = self.holder._queue
        assert self.router.activity.activity(TINY) is None or (
            self.router.activity.activity(TINY).held == line.count(TINY)
        )


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
