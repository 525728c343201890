"""A worker's command line: what the resource says, in the worker's flags."""

from __future__ import annotations

from dormouse_operator.manifests.inference_pool import LOCAL_SOCKET
from dormouse_operator.manifests.kv_events import events_config
from dormouse_operator.manifests.kv_store import store_flags
from dormouse_operator.model import Deployment, Engine
from dormouse_operator.model.wanted import VLLM
from dormouse_operator.parse import DEVICE_GRANTS

_PROFILE_CACHE = "/tmp/profile"  # noqa: S108  # the pod's own: a container that starts again finds it
_DEFAULT_ENGINE = Engine()
ENGINE_PYTHONS = {VLLM: "/opt/vllm/bin/python"}  # of images for runtimes that are not ours


def worker_arguments(deployment: Deployment) -> list[str]:
    """Return the worker's command line; what the spec leaves open is left to the worker."""
    engine = deployment.engine
    flags: dict[str, object] = {
        "--model": deployment.model.path,
        "--served-model-name": deployment.model.served_name,
        "--runtime": _unless_default(engine, "runtime"),
        "--engine-python": ENGINE_PYTHONS.get(engine.runtime),
        "--device": engine.device,
        "--task": _unless_auto(engine.task),
        "--dtype": engine.dtype,
        "--tensor-parallel-size": _unless_one(deployment.parallelism.tensor),
        "--pipeline-parallel-size": _unless_one(deployment.parallelism.pipeline),
        "--max-model-len": engine.max_model_len,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--gpu-memory-utilization": engine.gpu_memory_utilization,
        "--kv-cache-memory": engine.kv_cache_memory_bytes,
        "--kv-cache-dtype": _unless_auto(engine.kv_cache_dtype),
        "--block-size": engine.block_size,
        "--swap-space": engine.swap_space_bytes or None,
        "--load-format": engine.load_format,
        "--compile-sizes": ",".join(map(str, engine.compile_sizes)) or None,
        "--tool-call-parser": _unless_auto(engine.tool_call_parser),
        "--reasoning-parser": _unless_auto(engine.reasoning_parser),
        "--quantization": _unless_default(engine, "quantization"),
        "--speculation-method": _unless_default(engine, "speculation_method"),
        "--speculation-model": _unless_default(engine, "speculation_model"),
        "--num-speculative-tokens": _unless_default(engine, "num_speculative_tokens"),
        "--max-loras": engine.max_loras,
        "--max-lora-rank": engine.max_lora_rank,
        "--max-cpu-loras": engine.max_cpu_loras,
        "--profile-cache": _PROFILE_CACHE,
        **store_flags(engine.kv_store),
        "--kv-events-config": events_config(deployment),
        "--local-socket": LOCAL_SOCKET if deployment.serving.inference_pool else None,
        "--seed": engine.seed,
        "--drain-timeout": deployment.lifecycle.drain_timeout_s,
    }
    switches = {  # those that differ from the worker's default
        "--prefault-kv-cache": engine.prefault_kv_cache,
        "--no-enable-prefix-caching": not engine.enable_prefix_caching,
        "--no-cuda-graphs": not engine.cuda_graphs,
        "--no-async-scheduling": not engine.async_scheduling,
        "--no-keep-host-copy": not engine.keep_host_copy,
        "--enable-lora": engine.enable_lora,
        "--keep-prefix-cache": engine.keep_prefix_cache,
        "--keep-encoder-cache": engine.keep_encoder_cache,
        DEVICE_GRANTS: deployment.placement.pool is not None,
        "--spare-engine": deployment.lifecycle.spare_engine,
    }
    arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return arguments + [switch for switch, is_set in switches.items() if is_set]


def _unless_auto(name: str) -> str | None:
    """Return the name, None for the worker's default: workers of an earlier release know no such flag."""
    return None if name == "auto" else name


def _unless_default(engine: Engine, name: str) -> object:
    """Return the field, None where it says what it says by itself; see `_unless_auto`."""
    value: object = getattr(engine, name)
    return None if value == getattr(_DEFAULT_ENGINE, name) else value


def _unless_one(size: int) -> int | None:
    """Return the size, None for the worker's default: pods of before stay as they are."""
    return size if size > 1 else None
