"""Commands of a pool to its members' workers and pods: each is one idempotent effect. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from dormouse_kube.api import PODS
from dormouse_operator.act.workers import WorkerControl
from dormouse_operator.act.writes import Authority, Writer
from dormouse_operator.decide.pools.commands import (
    DeletePod,
    Drain,
    EndEngine,
    GrantDevice,
    PodCommand,
    RevokeDevice,
    SetGate,
    Sleep,
    WakeUp,
)
from dormouse_operator.errors import RequestCameIn, WorkerRefused
from dormouse_operator.manifests import FIELD_MANAGER, gate_manifest
from dormouse_operator.model import DeviceGrant, Pod
from dormouse_operator.model.wanted import STANDBY_LEVEL

YIELDING = "Yielding"  # reason of the gate of a pod that leaves its slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command and the pod that it is for."""

    command: PodCommand
    namespace: str
    pod: Pod
    grant: DeviceGrant | None  # of GrantDevice
    now: datetime
    then: PodCommand | None = None  # once it was carried out: what would follow from that it was


class PoolEffects:
    """Carries orders out. Raises WorkerError, KubeError, and NotLeading before all else."""

    def __init__(self, kube: Writer, workers: WorkerControl, authority: Authority) -> None:
        """Take both worlds and the right to act on them."""
        self._kube = kube
        self._workers = workers
        self._authority = authority

    async def act(self, order: Order) -> None:
        """Carry out one order."""
        self._authority.check()
        epoch, pod = self._authority.epoch, order.pod
        match order.command:
            case SetGate(_, is_open):
                gate = gate_manifest(order.namespace, pod, is_open=is_open, reason=YIELDING, now=order.now)
                await self._kube.apply(PODS, gate, field_manager=FIELD_MANAGER, subresource="status")
            case DeletePod():
                await self._kube.delete(PODS, order.namespace, pod.name, uid=pod.uid)
            case Drain():
                await self._workers.drain(pod, epoch=epoch)
            case Sleep(_, level, _, counter, must_abort):
                await self._sleep(pod, level, epoch, counter, must_abort=must_abort)
            case EndEngine():
                await self._workers.sleep(pod, epoch=epoch, level=STANDBY_LEVEL, abort=True)
            case RevokeDevice(_, slot_epoch):
                await self._workers.revoke_device(pod, epoch=epoch, slot_epoch=slot_epoch)
            case GrantDevice(_, _, instance):
                assert order.grant, "a grant goes with its bytes"
                await self._workers.grant_device(pod, epoch=epoch, grant=order.grant, instance=instance)
            case WakeUp():
                await self._workers.prepare_wake_up(pod, epoch=epoch)
                await self._workers.wake_up(pod, epoch=epoch)
            case _:
                assert_never(order.command)

    async def _sleep(self, pod: Pod, level: int, epoch: int, counter: int, *, must_abort: bool) -> None:
        """Put a worker to sleep in two phases. RequestCameIn where it took a request in since it was observed."""
        known = None if must_abort else counter
        try:
            await self._workers.prepare_sleep(pod, epoch=epoch, level=level, abort=must_abort, request_counter=known)
        except WorkerRefused as error:
            if known is not None and (await self._workers.get_status(pod)).request_counter != known:
                raise RequestCameIn(str(error)) from error
            raise
        await self._workers.sleep(pod, epoch=epoch, level=level, abort=must_abort)
