"""The flags that decide how the engine computes: each is made from its field of `EngineSettings`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dormouse_api.hub_uri import SCHEME
from dormouse_worker.common.knobs import KNOBS, Knob
from dormouse_worker.common.settings import MAX_COMPILE_SIZE, EngineSettings
from dormouse_worker.files.private_folder import default_folder
from dormouse_worker.front.flags import flag_types


def engine_settings(flags: argparse.Namespace) -> EngineSettings:
    """Return the settings that parsed flags say."""
    named = {name: getattr(flags, name) for name in KNOBS}
    if flags.profiler_dir:  # a trace shows torch's operations
        named["engine_runtime"] = "torch"
    return EngineSettings(**named)


def add_model_flags(group: argparse._ArgumentGroup) -> None:
    """Add what concerns the model: where it lies, how it is read."""
    add_knobs(group, "model")
    group.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        type=flag_types.name,
        help="name that requests may use; repeat for more (default: the directory's name)",
    )
    add_knobs(group, "runtime", "task", "dtype", "load_format", "quantization", "model_impl")
    add_knobs(group, "max_model_len", type=flag_types.integer(1, KNOBS["max_model_len"].meta.le))
    add_knobs(group, "tool_call_parser", "reasoning_parser", "tokenizer_cache", "profile_cache", "image_dir")
    add_knobs(group, "seed")


def add_engine_flags(group: argparse._ArgumentGroup) -> None:
    """Add what concerns the device, the batch and the cache."""
    add_knobs(group, "device", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "memory_limit_bytes")
    add_knobs(
        group,
        "device_memory_budget_bytes",
        "device_memory_reserve_bytes",
        "device_memory_sharers",
        "expected_device",
    )
    add_knobs(group, "kv_cache_memory_bytes", "kv_cache_dtype", "prefault_kv_cache", "block_size", "swap_space_bytes")
    add_knobs(group, "enable_prefix_caching", "keep_host_copy", "keep_prefix_cache", "keep_encoder_cache")
    add_knobs(group, "cuda_graphs", "compile_sizes", "async_scheduling", "threads")
    add_knobs(group, "speculation_method", "speculation_model", "num_speculative_tokens")
    add_knobs(group, "kv_store_dir", "kv_store_size_bytes")
    add_knobs(group, "kv_events_config", type=flag_types.kv_events_config)
    add_lora_flags(group)


def add_lora_flags(group: argparse._ArgumentGroup) -> None:
    """Add what concerns LoRA adapters."""
    add_knobs(group, "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras")
    group.add_argument(
        "--lora-modules",
        action="extend",
        nargs="+",
        metavar="NAME=PATH",
        type=flag_types.lora_module,
        help="adapters that are there from the start: the name that requests use, and the directory, or hf://ORG/NAME",
    )
    group.add_argument(
        "--lora-cache",
        default=default_folder("adapters"),
        metavar="PATH",
        type=Path,
        help="where adapters of a hub lie once they are fetched (default: a folder of the user's own in TMPDIR)",
    )
    group.add_argument(
        "--lora-tokens",
        default=Path("/adapter-tokens"),
        metavar="PATH",
        type=Path,
        help="tokens of the hub, which calls name SECRET/KEY (default /adapter-tokens)",
    )


def check_lora_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """End like any bad flag does where adapters are named and none can be, or one name means two."""
    names = [name for name, _ in flags.lora_modules or ()]
    if names and not flags.enable_lora:
        parser.error("argument --lora-modules: needs --enable-lora")
    if flags.pipeline_parallel_size > 1 and (
        hub := [at for _, at in flags.lora_modules or () if at.startswith(SCHEME)]
    ):
        parser.error(f"argument --lora-modules: {hub[0]} is not fetched for a group of several pods; name a path")
    if double := next((name for name in names if names.count(name) > 1), None):
        parser.error(f"argument --lora-modules: {double!r} is there more than once; each adapter has a name of its own")
    if taken := set(names) & {*(flags.served_model_name or ()), Path(flags.model).name}:
        parser.error(f"argument --lora-modules: {min(taken)!r} is the base model's name")


def add_knobs(group: argparse._ArgumentGroup, *names: str, **options: Any) -> None:
    """Add the flags of these fields; what is said here goes before what the field says."""
    for name in names:
        knob = KNOBS[name]
        group.add_argument(knob.flag, dest=name, **{**_options(knob), **options})


def _options(knob: Knob) -> dict[str, Any]:
    options: dict[str, Any] = {"help": (knob.meta.description or "").replace("{default}", _words(knob.default))}
    if knob.default is msgspec.NODEFAULT:
        options["required"] = True
    else:
        options["default"] = knob.default
    if knob.kind is bool:
        return {**options, "action": argparse.BooleanOptionalAction}
    if knob.choices:
        options |= {"choices": knob.choices, "type": type(knob.choices[0])}
    elif parse := _parser_of(knob):
        options["type"] = parse
    return {**options, "metavar": (knob.meta.extra or {}).get("metavar")}


def _parser_of(knob: Knob) -> Callable[[str], object] | None:
    """Return what reads a value whose choices are not listed; None: any text will do."""
    if knob.name.endswith("_bytes"):
        return flag_types.size_in_bytes
    if knob.kind is int:
        return flag_types.integer(knob.meta.ge, knob.meta.le)
    if knob.kind is tuple:
        return flag_types.sizes(knob.meta.max_length, MAX_COMPILE_SIZE)
    return flag_types.share if knob.kind is float else None


def _words(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)
