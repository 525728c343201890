"""The worker's command line and environment, parsed once. A bad value ends the program and names the flag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dormouse_api.names import CONTROL_PORT, INFERENCE_PORT, METRICS_PORT
from dormouse_worker.engine.validation import DTYPES, LOAD_FORMATS, MODEL_IMPLS
from dormouse_worker.front import flag_types
from dormouse_worker.settings import EngineSettings

EPILOG = """
Sizes are bytes, or a number with Ki, Mi, Gi or Ti.
Environment: DORMOUSE_POD_UID and DORMOUSE_SETTINGS_DIGEST are echoed in the status;
DORMOUSE_OPERATOR_TOKEN_SHA256 and DORMOUSE_GATEWAY_TOKEN_SHA256 are the digests of the tokens by which these two
roles are known (none = nobody has the role).

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
    metrics_port: int  # HTTP
    drain_timeout_s: float  # how long running requests may go on after SIGTERM, and by default for Drain and Sleep
    max_waiting_requests: int  # requests without a token yet; more are refused with RESOURCE_EXHAUSTED
    max_open_calls: int  # of any kind on one port, also of callers that read nothing: bounds what the front keeps
    default_timeout_s: float  # deadline of a request that brings none: nobody waits forever for what nobody reads
    max_timeout_s: float  # longer deadlines are cut to it
    engine_timeout_s: float  # an engine silent for longer is killed and restarted: far above the longest forward pass
    max_engine_restarts: int  # within the window; one death more ends the worker with code 1. 0 = the first does
    engine_restart_window_s: float  # how long a restart counts
    standalone: bool  # agree with itself instead of waiting for an operator, and end where a status would be FAILED
    enable_reflection: bool  # gRPC reflection on the serving port
    log_level: str
    pod_uid: str
    settings_digest: str  # what the operator calls these settings; their own digest if it named none
    operator_token_sha256: str
    gateway_token_sha256: str


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[FrontSettings, EngineSettings]:
    """Return both parts' settings. Ends the program with code 2 and the flag's name on a bad value."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if flags.default_timeout_seconds > flags.max_timeout_seconds:
        parser.error(
            f"argument --default-timeout-seconds: {flags.default_timeout_seconds:g} is above"
            f" --max-timeout-seconds, {flags.max_timeout_seconds:g}"
        )
    engine = EngineSettings(
        model=flags.model,
        device=flags.device,
        dtype=flags.dtype,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        memory_limit_bytes=flags.memory_limit,
        kv_cache_memory_bytes=flags.kv_cache_memory,
        block_size=flags.block_size,
        swap_space_bytes=flags.swap_space,
        enable_prefix_caching=flags.enable_prefix_caching,
        load_format=flags.load_format,
        model_impl=flags.model_impl,
        seed=flags.seed,
        tokenizer_cache=flags.tokenizer_cache,
        threads=flags.threads,
    )
    front = FrontSettings(
        served_model_names=tuple(flags.served_model_name or (Path(flags.model).name,)),
        host=flags.host,
        port=flags.port,
        control_port=flags.control_port,
        metrics_port=flags.metrics_port,
        drain_timeout_s=flags.drain_timeout,
        max_waiting_requests=flags.max_waiting_requests,
        max_open_calls=flags.max_open_calls,
        default_timeout_s=flags.default_timeout_seconds,
        max_timeout_s=flags.max_timeout_seconds,
        engine_timeout_s=flags.engine_timeout,
        max_engine_restarts=flags.max_engine_restarts,
        engine_restart_window_s=flags.engine_restart_window,
        standalone=flags.standalone,
        enable_reflection=flags.enable_reflection,
        log_level=flags.log_level,
        pod_uid=environ.get("DORMOUSE_POD_UID", ""),
        settings_digest=environ.get("DORMOUSE_SETTINGS_DIGEST") or engine.digest(),
        operator_token_sha256=environ.get("DORMOUSE_OPERATOR_TOKEN_SHA256", ""),
        gateway_token_sha256=environ.get("DORMOUSE_GATEWAY_TOKEN_SHA256", ""),
    )
    return front, engine


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dormouse-worker",
        description="Serve one model over gRPC: a front process (this one) and an engine process.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_model_flags(parser.add_argument_group("model"))
    _add_engine_flags(parser.add_argument_group("engine"))
    _add_front_flags(parser.add_argument_group("serving"))
    return parser


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", required=True, help="directory with config.json, tokenizer.json and *.safetensors")
    add(
        "--served-model-name",
        action="append",
        metavar="NAME",
        type=flag_types.name,
        help="name that requests may use; repeat for more (default: the directory's name)",
    )
    add("--dtype", default="auto", choices=DTYPES, help="auto = the model's own (default)")
    add(
        "--load-format",
        default="auto",
        choices=LOAD_FORMATS,
        help="dummy = random weights, nothing is read; sharded_state = what SaveShardedState wrote",
    )
    add(
        "--model-impl",
        default="auto",
        choices=MODEL_IMPLS,
        help="whose forward pass computes: auto = our own where it fits the model, else transformers' (default)",
    )
    add(
        "--max-model-len",
        default=0,
        type=flag_types.at_least(1),
        metavar="TOKENS",
        help="prompt and output together (default: the model's own limit)",
    )
    add(
        "--tokenizer-cache",
        default="",
        metavar="DIRECTORY",
        help="where tokenizers of older formats are kept once they are converted to tokenizer.json "
        "(default: dormouse-tokenizers-UID in the temporary directory)",
    )
    add("--seed", default=0, type=flag_types.at_least(0), help="of random weights (default 0)")


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where to compute (default cpu)")
    add(
        "--max-num-seqs",
        default=64,
        type=flag_types.at_least(1),
        metavar="N",
        help="sequences in one batch (default 64)",
    )
    add(
        "--max-num-batched-tokens",
        default=2048,
        type=flag_types.at_least(1),
        metavar="N",
        help="tokens of one forward pass; longer prompts are cut into chunks (default 2048)",
    )
    add(
        "--gpu-memory-utilization",
        default=0.9,
        type=flag_types.share,
        metavar="SHARE",
        help="share of the device's memory (cpu: of the memory limit) to use, above 0, at most 1 (default 0.9)",
    )
    add(
        "--memory-limit",
        default=0,
        type=flag_types.size_in_bytes,
        metavar="SIZE",
        help="cpu: the memory to share (default: the container's limit)",
    )
    add(
        "--kv-cache-memory",
        default=0,
        type=flag_types.size_in_bytes,
        metavar="SIZE",
        help="exact size of the KV cache instead of the measured rest",
    )
    add("--block-size", default=16, type=flag_types.at_least(1), metavar="TOKENS", help="tokens per block (default 16)")
    add(
        "--swap-space",
        default=0,
        type=flag_types.size_in_bytes,
        metavar="SIZE",
        help="host memory for swapped blocks (default 0)",
    )
    add(
        "--enable-prefix-caching",
        default=True,
        action=argparse.BooleanOptionalAction,
        help="keep the blocks of ended requests and share equal prefixes (default on)",
    )
    add(
        "--threads",
        default=0,
        type=flag_types.at_least(0),
        metavar="N",
        help="compute threads on cpu (default: the container's cpu limit)",
    )


def _add_front_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="[::]", help="address to listen on (default [::]: every address)")
    add("--port", default=INFERENCE_PORT, type=flag_types.port, help=f"Inference over gRPC (default {INFERENCE_PORT})")
    add(
        "--control-port",
        default=CONTROL_PORT,
        type=flag_types.port,
        help=f"WorkerControl over gRPC (default {CONTROL_PORT})",
    )
    add(
        "--metrics-port",
        default=METRICS_PORT,
        type=flag_types.port,
        help=f"/metrics, /healthz and /readyz over HTTP (default {METRICS_PORT})",
    )
    add(
        "--drain-timeout",
        default=60.0,
        type=flag_types.seconds,
        metavar="SECONDS",
        help="how long running requests may go on after SIGTERM (default 60)",
    )
    add(
        "--max-waiting-requests",
        default=1024,
        type=flag_types.at_least(1),
        metavar="N",
        help="requests without a token yet; more are refused (default 1024)",
    )
    add(
        "--max-open-calls",
        default=4096,
        type=flag_types.at_least(1),
        metavar="N",
        help="calls of any kind at once on one port; more are refused (default 4096)",
    )
    add(
        "--default-timeout-seconds",
        default=600.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long a request without a deadline may take (default 600)",
    )
    add(
        "--max-timeout-seconds",
        default=3600.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long any request may take; longer deadlines are cut to it (default 3600)",
    )
    add(
        "--engine-timeout",
        default=120.0,
        type=flag_types.engine_timeout,
        metavar="SECONDS",
        help="an engine silent for longer is stuck and restarted; above the longest forward pass (default 120)",
    )
    add(
        "--max-engine-restarts",
        default=5,
        type=flag_types.at_least(0),
        metavar="N",
        help="how often an engine that died is started again within the window, after 1, 2, 4 s and so on; "
        "then the worker ends with code 1 and whoever started it decides (default 5)",
    )
    add(
        "--engine-restart-window",
        default=600.0,
        type=flag_types.seconds,
        metavar="SECONDS",
        help="how long a restart counts (default 600)",
    )
    add(
        "--standalone",
        action="store_true",
        help="wait for no operator: allocate what was measured and serve; this is what `dormouse serve` runs",
    )
    add("--enable-reflection", action="store_true", help="let clients ask the serving port for its schema")
    add("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="default INFO")
