"""The worker's command line and environment, parsed once. A bad value ends the program and names the flag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dormouse_api.names import STANDBY_VARIABLE, Role
from dormouse_api.tickets import BadKey, TicketCheck, public_check, read_public_key
from dormouse_api.tracing import BadTracing, TracingSettings, read_tracing
from dormouse_worker.common.group import GroupPlace
from dormouse_worker.common.kv_events import OFF, KvEventsConfig
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.private_folder import default_folder
from dormouse_worker.front.flags.developer import add_developer_flags
from dormouse_worker.front.flags.engine import check_grant_flags, check_runtime_flags, check_spare_flags
from dormouse_worker.front.flags.group import add_group_flags, check_group_flags, place_of_flags
from dormouse_worker.front.flags.model import add_engine_flags, add_model_flags, check_lora_flags, engine_settings
from dormouse_worker.front.flags.serving import add_serving_flags
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.speech.limits import AudioLimits

EPILOG = """
Sizes are bytes, or a number with Ki, Mi, Gi or Ti.
Environment: DORMOUSE_POD_UID and DORMOUSE_SETTINGS_DIGEST are echoed in the status;
DORMOUSE_GROUP_ID names the group of ranks, and only ranks that bring the same one may join it;
DORMOUSE_POD_NAME is the name by which its ranks are told (default: HOSTNAME);
DORMOUSE_OPERATOR_KEY and DORMOUSE_GATEWAY_KEY are the public keys by which tickets of these two roles are known, made
out to DORMOUSE_POD_UID (none = nobody has the role);
DORMOUSE_STANDBY=true starts the worker in STANDBY: no engine, and nothing on a device, until WakeUp;
DORMOUSE_POD_IP stands for {DORMOUSE_POD_IP} in the topic of KV events;
DORMOUSE_MUTUAL_TLS_DIR holds tls.crt, tls.key and ca.crt: with it both gRPC ports let in only callers with a
certificate of the same authority, and renewed files are taken while it serves.
STAND_IN_DEVICES names a folder of stand-ins for GPUs, for tests and demos: to --device cuda they are the machine's.
OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other variables switch tracing on, and say how.

The worker loads the model, measures how many blocks of KV cache fit and waits for InitializeCache on the control
port; from then on it serves dormouse.v1.Inference. SIGTERM drains and ends it.
"""


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """What decides how the front serves; none of it changes what the engine computes."""

    served_model_names: tuple[str, ...]  # what requests may call the model; the first stands in answers and metrics
    host: str  # address to listen on; [::] = every address
    port: int  # Inference, health, reflection; 0 = any free one
    control_port: int  # WorkerControl, health
    local_socket: str  # path at which callers within the pod are served, too; "" = none
    metrics_port: int  # HTTP
    drain_timeout_s: float  # how long running requests may go on after SIGTERM, and by default for Drain and Sleep
    prepared_timeout_s: float  # how long a PrepareSleep or PrepareWakeUp holds without its second phase
    max_waiting_requests: int  # requests without a token yet; more are refused with RESOURCE_EXHAUSTED
    max_open_calls: int  # of any kind on one port, also of callers that read nothing: bounds what the front keeps
    default_timeout_s: float  # deadline of a request that brings none: nobody waits forever for what nobody reads
    max_timeout_s: float  # longer deadlines are cut to it
    engine_timeout_s: float  # an engine silent for longer is killed and restarted: far above the longest forward pass
    engine_load_timeout_s: float  # the same for one that takes longer to start or to wake: minutes for a large model
    engine_command_timeout_s: float  # the same for any other command
    max_engine_restarts: int  # within the window; one death more ends the worker with code 1. 0 = the first does
    engine_restart_window_s: float  # how long a restart counts
    standalone: bool  # agree with itself instead of waiting for an operator, and end where a status would be FAILED
    device_grants: bool  # a pool's worker: it starts in STANDBY and uses the device under a grant only
    enable_reflection: bool  # gRPC reflection on the serving port
    profiler_dir: str  # where profiles may be written, absolute; "" = none may be taken
    log_level: str
    pod_uid: str
    settings_digest: str  # what the operator calls these settings; their own digest if it named none
    operator_key: str  # public: checks the operator's tickets; "" = nobody is the operator
    gateway_key: str  # the same of gateways
    place: GroupPlace = field(default_factory=GroupPlace)  # in its group; one pod that is all there is leads itself
    lora_modules: tuple[tuple[str, str], ...] = ()  # names and sources of adapters that are there from the start
    lora_cache: Path = field(default_factory=lambda: default_folder("adapters"))  # where those of a hub lie
    lora_tokens: Path = Path("/adapter-tokens")  # the hub's tokens, SECRET/KEY below
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # for who asks the hub
    starts_in_standby: bool = False  # without an engine, until WakeUp
    spare_engine: bool = False  # keep an engine process that has imported its libraries, and waits
    engine_python: str = ""  # the interpreter of engines that are not ours; "" = ours
    mutual_tls_dir: str = ""  # tls.crt, tls.key and ca.crt; "" = both gRPC ports are plain
    tracing: TracingSettings = field(default_factory=TracingSettings)  # where spans go; off without an endpoint
    kv_events: KvEventsConfig = OFF  # who is told what is in the prefix cache, and where
    sounds: AudioLimits = field(default_factory=AudioLimits)  # where the model reads sound
    images: ImageLimits = field(default_factory=ImageLimits)  # of prompts, where the model sees

    def proofs(self) -> TicketCheck:
        """Return who tells what callers prove: a gateway signs for workers, too, which it sends to each other."""
        keys = {Role.OPERATOR: self.operator_key, Role.GATEWAY: self.gateway_key, Role.WORKER: self.gateway_key}
        return TicketCheck([self.pod_uid], {role: [public_check(key)] for role, key in keys.items() if key})


class FlagsRefused(Exception):
    """A command line that came while the program runs is wrong; the message names the flag."""


class _RefusingParser(argparse.ArgumentParser):
    """Raises FlagsRefused where others end the program."""

    def error(self, message: str) -> NoReturn:
        raise FlagsRefused(message)


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[FrontSettings, EngineSettings]:
    """Return both parts' settings. Ends the program with code 2 and the flag's name on a bad value."""
    return _parse(command_line(), argv, environ)


def reparse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[FrontSettings, EngineSettings]:
    """Return both parts' settings in a program that goes on. Raises FlagsRefused on a bad value."""
    return _parse(_with_flags(_RefusingParser(allow_abbrev=False, add_help=False)), argv, environ)


def _parse(
    parser: argparse.ArgumentParser, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[FrontSettings, EngineSettings]:
    flags = parser.parse_args(argv)
    if flags.default_timeout_seconds > flags.max_timeout_seconds:
        parser.error(
            f"argument --default-timeout-seconds: {flags.default_timeout_seconds:g} is above"
            f" --max-timeout-seconds, {flags.max_timeout_seconds:g}"
        )
    engine = engine_settings(flags)
    check_group_flags(parser, flags)
    check_grant_flags(parser, flags)
    check_spare_flags(parser, flags)
    check_runtime_flags(parser, flags, engine)
    check_lora_flags(parser, flags)
    return _front_settings(parser, flags, environ, engine.digest()), engine


def _front_settings(
    parser: argparse.ArgumentParser, flags: argparse.Namespace, environ: Mapping[str, str], engine_digest: str
) -> FrontSettings:
    pod_uid = environ.get("DORMOUSE_POD_UID", "")
    return FrontSettings(
        served_model_names=tuple(flags.served_model_name or (Path(flags.model).name,)),
        host=flags.host,
        port=flags.port,
        control_port=flags.control_port,
        local_socket=flags.local_socket,
        metrics_port=flags.metrics_port,
        drain_timeout_s=flags.drain_timeout,
        prepared_timeout_s=flags.prepared_timeout,
        max_waiting_requests=flags.max_waiting_requests,
        max_open_calls=flags.max_open_calls,
        default_timeout_s=flags.default_timeout_seconds,
        max_timeout_s=flags.max_timeout_seconds,
        engine_timeout_s=flags.engine_timeout,
        engine_load_timeout_s=flags.engine_load_timeout,
        engine_command_timeout_s=flags.engine_command_timeout,
        max_engine_restarts=flags.max_engine_restarts,
        engine_restart_window_s=flags.engine_restart_window,
        standalone=flags.standalone,
        device_grants=flags.device_grants,
        starts_in_standby=_starts_in_standby(parser, flags, environ),
        spare_engine=flags.spare_engine,
        engine_python=flags.engine_python,
        enable_reflection=flags.enable_reflection,
        profiler_dir=flags.profiler_dir,
        log_level=flags.log_level,
        pod_uid=pod_uid,
        settings_digest=environ.get("DORMOUSE_SETTINGS_DIGEST") or engine_digest,
        operator_key=_public_key(parser, environ, "DORMOUSE_OPERATOR_KEY", pod_uid),
        gateway_key=_public_key(parser, environ, "DORMOUSE_GATEWAY_KEY", pod_uid),
        place=place_of_flags(flags),
        mutual_tls_dir=environ.get("DORMOUSE_MUTUAL_TLS_DIR", ""),
        tracing=_tracing(parser, flags, environ),
        lora_modules=tuple(flags.lora_modules or ()),
        lora_cache=flags.lora_cache.absolute(),
        lora_tokens=flags.lora_tokens.absolute(),
        environ=environ,
        kv_events=flags.kv_events_config,
        sounds=AudioLimits(max_seconds=flags.max_audio_seconds),
        images=ImageLimits(max_pixels=flags.max_image_pixels, cache_bytes=flags.image_cache_bytes),
    )


def _starts_in_standby(parser: argparse.ArgumentParser, flags: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Return whether an engine starts with the first WakeUp only."""
    value = environ.get(STANDBY_VARIABLE, "")
    if value not in {"", "true", "false"}:
        parser.error(f"{STANDBY_VARIABLE} is {value!r}; allowed are true and false")
    if value == "true" and flags.standalone:
        parser.error(f"{STANDBY_VARIABLE} is true, not allowed with --standalone: nothing wakes the worker there")
    if value == "true" and (num_pods := flags.pipeline_parallel_size) > 1:
        parser.error(f"{STANDBY_VARIABLE} is true: needs --pipeline-parallel-size 1, not {num_pods}")
    return value == "true"


def _public_key(parser: argparse.ArgumentParser, environ: Mapping[str, str], name: str, pod_uid: str) -> str:
    """Return what checks a role's tickets, "" for none."""
    key = environ.get(name, "")
    try:
        if key:
            read_public_key(key)
    except BadKey as error:
        parser.error(f"{name}: {error}")
    if key and not pod_uid:
        parser.error(f"DORMOUSE_POD_UID is empty, but {name} is set: tickets are made out to a pod's UID")
    return key


def _tracing(parser: argparse.ArgumentParser, flags: argparse.Namespace, environ: Mapping[str, str]) -> TracingSettings:
    try:
        return read_tracing(environ, flags.tracing_endpoint)
    except BadTracing as error:
        parser.error(str(error))


def command_line() -> argparse.ArgumentParser:
    """Return the program's command line, every flag described."""
    parser = argparse.ArgumentParser(
        prog="dormouse-worker",
        description="Serve one model over gRPC: a front process (this one) and an engine process.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return _with_flags(parser)


def _with_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_model_flags(parser.add_argument_group("model"))
    add_engine_flags(parser.add_argument_group("engine"))
    add_group_flags(parser.add_argument_group("group of ranks"))
    add_developer_flags(parser.add_argument_group("for developers"))
    add_serving_flags(parser.add_argument_group("serving"))
    return parser
