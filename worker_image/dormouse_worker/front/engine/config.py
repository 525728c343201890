"""What one engine is started with and what the front serves while it is there; which of these is served now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import grpc

from dormouse_api import __version__
from dormouse_api.status import CallError
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.ipc import EngineStatus
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.claims import claims
from dormouse_worker.front.engine.watchdog import EngineLimits
from dormouse_worker.front.engine.wire import Identity
from dormouse_worker.front.flags.settings import FlagsRefused, FrontSettings, reparse_settings
from dormouse_worker.front.served_model import Model

# What is settled once the front's process runs; everything else follows the engine that serves.
FIXED: Mapping[str, str] = MappingProxyType(
    {
        "host": "--host",
        "port": "--port",
        "control_port": "--control-port",
        "metrics_port": "--metrics-port",
        "local_socket": "--local-socket",
        "max_waiting_requests": "--max-waiting-requests",
        "max_open_calls": "--max-open-calls",
        "max_engine_restarts": "--max-engine-restarts",
        "engine_restart_window_s": "--engine-restart-window",
        "standalone": "--standalone",
        "device_grants": "--device-grants",
        "spare_engine": "--spare-engine",
        "engine_python": "--engine-python",
        "enable_reflection": "--enable-reflection",
        "profiler_dir": "--profiler-dir",
        "lora_modules": "--lora-modules",
        "lora_cache": "--lora-cache",
        "lora_tokens": "--lora-tokens",
        "log_level": "--log-level",
        "kv_events": "--kv-events-config",
        "place": "--master-port",  # and the other flags of a group: the values that are told name them all
    }
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One set of settings, and the model that they name or why it cannot be read."""

    front: FrontSettings
    engine: EngineSettings
    model: Model | WorkerError

    @property
    def digest(self) -> str:
        """Return what the operator calls these settings."""
        return self.front.settings_digest

    @property
    def model_name(self) -> str:
        """Return the name that stands in answers and metrics."""
        return self.front.served_model_names[0]

    @property
    def identity(self) -> Identity:
        """Return what the status says of the worker while it serves this."""
        known = None if isinstance(self.model, WorkerError) else self.model.card
        claimed = claims(self.engine, known.task if known else "")
        return Identity(self.front.pod_uid, self.digest, known.digest if known else "", __version__, claimed)

    @property
    def engine_limits(self) -> EngineLimits:
        """Return how long the engine may take."""
        front = self.front
        return EngineLimits(front.engine_timeout_s, front.engine_load_timeout_s, front.engine_command_timeout_s)


ReadEdition = Callable[
    [FrontSettings, EngineSettings], EngineConfig
]  # raises nothing; slow: it reads the model's files


class Served:
    """Owns which engine config is served."""

    def __init__(self, edition: EngineConfig) -> None:
        self.edition = edition

    def __repr__(self) -> str:
        return f"Served({self.edition.digest})"

    async def warm(self, engine: EngineStatus) -> None:
        """Have at hand what the first chat needs."""
        if isinstance(self.edition.model, Model):
            await self.edition.model.warm(engine)

    def forget_images(self) -> None:
        """Delete processed images and sounds that no request has."""
        if isinstance(self.edition.model, Model) and self.edition.model.senses is not None:
            self.edition.model.senses.desk.files.forget()

    def rest(self) -> None:
        """End the processes beside the front that do nothing now."""
        if isinstance(self.edition.model, Model):
            self.edition.model.rest()

    def close(self) -> None:
        """End what belongs to the engine config alone; nobody is served by it any more."""
        if isinstance(self.edition.model, Model):
            self.edition.model.close()


def settings_of(arguments: Sequence[str], digest: str, present: FrontSettings) -> tuple[FrontSettings, EngineSettings]:
    """Return the settings of another command line for a front that runs; its environment stays.

    Raises CallError INVALID_ARGUMENT naming the flag that is wrong, or that only a new process can change.
    """
    try:
        parsed, engine = reparse_settings(arguments, {"DORMOUSE_SETTINGS_DIGEST": digest})
    except FlagsRefused as error:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"arguments: {error}") from error
    for field, flag in FIXED.items():
        old, new = getattr(present, field), getattr(parsed, field)
        if new != old:
            message = f"arguments: {flag} is {new!r}, but this process runs with {old!r}; only a new pod can change it"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
    if present.place.num_nodes > 1:
        message = f"arguments: the group has {present.place.num_nodes} pods, and each keeps what it started with"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{message}; only new pods can change it")
    front = replace(
        parsed,
        pod_uid=present.pod_uid,
        operator_key=present.operator_key,
        gateway_key=present.gateway_key,
        mutual_tls_dir=present.mutual_tls_dir,
        starts_in_standby=present.starts_in_standby,
        environ=present.environ,
        tracing=present.tracing,
    )
    return front, engine
