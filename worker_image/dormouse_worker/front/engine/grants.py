"""What this worker knows of its grant, and of what it refused: told in the status, asked before the device is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.grant import DeviceGrant, Standing
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.sides import EngineProcess, Spawn, SpawnFor

logger = logging.getLogger(__name__)

_REFUSALS = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED})


class Grants:
    """Owns the standing, and the last refusal of a sleep or a wake."""

    def __init__(self, instance: str, *, needs_grant: bool) -> None:
        """`instance` names this run of the container: another one knows of none of this."""
        self.standing = Standing(needs_grant)
        self.changes = Changes()  # also of what else the status tells
        self._instance = instance
        self._refused_slot_epoch = 0
        self._missing_bytes = 0

    def __repr__(self) -> str:
        return f"Grants({self.standing}, instance={self._instance})"

    def grant(self, wanted: DeviceGrant, instance: str) -> None:
        """Take a grant. Raises CallError FAILED_PRECONDITION with nothing changed."""
        if why := self.standing.why_not_granted(wanted):
            raise _refused(f"GrantDevice: {why}")
        if instance not in {"", self._instance}:
            raise _refused(f"GrantDevice: instance is {instance!r}, this worker is {self._instance!r}: it restarted")
        self._enter(self.standing.granted(wanted), "device granted")

    def check_revoke(self, slot_epoch: int, engine: EngineStatus) -> None:
        """Raise CallError FAILED_PRECONDITION where `revoke` would."""
        if why := self.standing.why_not_revoked(slot_epoch, engine):
            raise _refused(f"RevokeDevice: {why}")

    def revoke(self, slot_epoch: int, engine: EngineStatus) -> None:
        """Take the grant back. Raises CallError FAILED_PRECONDITION with nothing changed."""
        self.check_revoke(slot_epoch, engine)
        self._enter(self.standing.revoked(slot_epoch), "device revoked")

    def require(self, call: str) -> None:
        """Raise CallError FAILED_PRECONDITION where the call takes memory for which there is no grant."""
        if why := self.standing.why_not_used(call):
            raise _refused(why)

    def starts_again(self, died_in: State) -> bool:
        """Return whether an engine that died is started again."""
        return self.standing.starts_again(died_in)

    @contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Remember that a sleep or a wake was refused within the block."""
        try:
            yield
        except CallError as error:
            if error.code in _REFUSALS:
                self._note(self.standing.slot_epoch, self._missing_bytes)
            raise

    def note_missing(self, missing_bytes: int) -> None:
        """Remember what a prepared wake lacks; 0 = it lacks nothing."""
        self._note(self.standing.slot_epoch if missing_bytes else self._refused_slot_epoch, missing_bytes)

    def spawning(self, spawn_for: SpawnFor) -> SpawnFor:
        """Return what starts engines within the grant that holds when they are started."""

        def spawn_within(settings: EngineSettings) -> Spawn:
            async def spawn(socket_path: Path) -> EngineProcess:
                return await spawn_for(self._begin(settings))(socket_path)

            return spawn

        return spawn_within

    def tell(self, status: control.WorkerStatus) -> None:
        """Fill in what the status says of all this."""
        grant = self.standing.grant
        status.instance, status.needs_grant = self._instance, self.standing.needs_grant
        status.refused_slot_epoch, status.missing_bytes = self._refused_slot_epoch, self._missing_bytes
        if grant is not None:
            status.grant.slot, status.grant.slot_epoch = grant.slot, grant.slot_epoch
            status.grant.budget_bytes, status.grant.device = grant.budget_bytes, grant.device
            status.grant.reserved_bytes, status.grant.awake_per_slot = grant.reserved_bytes, grant.awake_per_slot

    def _begin(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings of an engine that is started now."""
        grant = self.standing.grant
        assert grant is not None or not self.standing.needs_grant, "no engine without a grant"
        self.standing = replace(self.standing, started_under=grant)
        return settings if grant is None else grant.bound(settings)

    def end(self) -> None:
        """Forget what the engine was started under: there is none any more."""
        self.standing = replace(self.standing, started_under=None)

    def _enter(self, standing: Standing, what: str) -> None:
        if standing == self.standing:
            return
        self.standing = standing
        logger.info(what, extra={"fields": {"grant": standing.grant, "slot_epoch": standing.slot_epoch}})
        self.changes.notify()

    def _note(self, refused_slot_epoch: int, missing_bytes: int) -> None:
        if (refused_slot_epoch, missing_bytes) != (self._refused_slot_epoch, self._missing_bytes):
            self._refused_slot_epoch, self._missing_bytes = refused_slot_epoch, missing_bytes
            self.changes.notify()


def _refused(message: str) -> CallError:
    return CallError(grpc.StatusCode.FAILED_PRECONDITION, message)
