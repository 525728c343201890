"""Our settings in vLLM's words, and which of them it is not given. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dormouse_api.limits import MAX_LOGPROBS
from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.knobs import KNOBS
from dormouse_worker.common.settings import EngineSettings

# What means the same to vLLM, or nothing to anybody but our front. All other fields keep their defaults.
TAKEN = frozenset(
    {
        *("runtime", "model", "task", "dtype", "load_format", "max_model_len", "seed", "device"),
        *("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "block_size", "threads"),
        *("gpu_memory_utilization", "memory_limit_bytes", "kv_cache_memory_bytes"),
        *("tool_call_parser", "reasoning_parser", "tokenizer_cache", "image_dir", "profile_cache"),
        *("keep_host_copy", "cuda_graphs", "async_scheduling", "num_speculative_tokens", "kv_store_size_bytes"),
        *("max_loras", "max_lora_rank", "max_cpu_loras"),
    }
)
ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "task": ("auto", "generate"),
    "load_format": ("auto", "dummy"),
    "device": ("cpu",),  # nobody has run it on another
}
PLACEHOLDER_BYTES = 1 << 20  # of a cache: vLLM measures none of its own then, and we say what fits


def check_vllm_settings(settings: EngineSettings) -> None:
    """Raise InvalidSettings, naming field, value and limit, for the first that vLLM's engine is not given."""
    for name, knob in KNOBS.items():
        value = getattr(settings, name)
        allowed = ALLOWED.get(name, () if name in TAKEN else (knob.default,))
        if allowed and value not in allowed:
            words = " or ".join(repr(each) for each in allowed)
            raise InvalidSettings(f"{name} is {value!r}; with runtime 'vllm' allowed is {words}")
    if settings.model_path.suffix == ".gguf":
        raise InvalidSettings(f"model is {settings.model}; runtime 'vllm' reads directories with *.safetensors")


def engine_options(settings: EngineSettings, *, can_compile: bool) -> dict[str, Any]:
    """Return vLLM's EngineArgs. What is left out is vLLM's own default; without a C++ compiler nothing is compiled."""
    options: dict[str, Any] = {
        "model": settings.model,
        "skip_tokenizer_init": True,  # our front has it
        "generation_config": "vllm",  # nor does the model change what was asked for: our front has filled that in
        "dtype": settings.dtype,
        "load_format": settings.load_format,
        "seed": settings.seed,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "max_logprobs": MAX_LOGPROBS,
        "scheduling_policy": "priority",
        "kv_cache_memory_bytes": PLACEHOLDER_BYTES,
        "disable_log_stats": False,
        "enforce_eager": not can_compile,
    }
    if settings.max_model_len:
        options["max_model_len"] = settings.max_model_len
    if settings.block_size != KNOBS["block_size"].default:  # else vLLM knows which is best
        options["block_size"] = settings.block_size
    return options


def variables(settings: EngineSettings, inherited: Mapping[str, str], cores: Sequence[int]) -> dict[str, str]:
    """Return the variables that vLLM reads when it is imported; what the user has set stays as it is.

    cores: those on which this process may compute, as many as it shall use.
    """
    ours = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if settings.profile_cache:
        ours["VLLM_CACHE_ROOT"] = f"{settings.profile_cache}/vllm"
        ours["TORCHINDUCTOR_CACHE_DIR"] = f"{settings.profile_cache}/inductor"
    free = {name: text for name, text in ours.items() if name not in inherited}
    return {**free, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # this process is the engine's
