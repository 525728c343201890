"""Checks of numbers from outside that need no model: settings, block counts, token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dormouse_worker.common.errors import InvalidArgument, InvalidSettings
from dormouse_worker.common.ipc import Added, MemoryReport
from dormouse_worker.common.knobs import KNOBS
from dormouse_worker.common.settings import HEADS, EngineSettings
from dormouse_worker.common.task_messages import AddPooling, AddWindow

QUALIFIED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")  # of a class in a module


def check_settings(settings: EngineSettings) -> None:
    """Raise InvalidSettings, naming field, value and limit, for the first bad one.

    The command line checks too; this is the net below.
    """
    _check_compile_sizes(settings)
    _check_lora(settings)
    _check_kv_store(settings)
    _check_kv_events(settings)
    for name, knob in KNOBS.items():
        if why := knob.why_not(getattr(settings, name)):
            raise InvalidSettings(why)
    _check_speculation(settings)
    _check_class("worker_cls", settings.worker_cls, none="auto")
    _check_class("worker_extension_cls", settings.worker_extension_cls, none="")


def _check_compile_sizes(settings: EngineSettings) -> None:
    limit = settings.max_num_batched_tokens
    for size in settings.compile_sizes:
        if not 0 < size <= limit:
            raise InvalidSettings(f"compile_sizes has {size}; allowed are 1 to max_num_batched_tokens, {limit}")
    if settings.compile_sizes and settings.tensor_parallel_size > 1:
        raise InvalidSettings(
            f"compile_sizes needs tensor_parallel_size 1, not {settings.tensor_parallel_size}: "
            "ranks meet within a layer; leave it empty"
        )


def _check_lora(settings: EngineSettings) -> None:
    if not settings.enable_lora:
        return
    if 0 < settings.max_cpu_loras < settings.max_loras:
        raise InvalidSettings(
            f"max_cpu_loras is {settings.max_cpu_loras}; at least max_loras, {settings.max_loras}, is needed, or 0"
        )
    if settings.compile_sizes:
        raise InvalidSettings("compile_sizes is set; what adapters add (enable_lora) is not compiled: leave it empty")


def _check_kv_events(settings: EngineSettings) -> None:
    if settings.kv_events_config.is_on and not settings.enable_prefix_caching:
        raise InvalidSettings("kv_events_config is on; without enable_prefix_caching there is nothing to tell")


def _check_kv_store(settings: EngineSettings) -> None:
    """Refuse by name what the store is not combined with yet."""
    if not settings.kv_store_dir:
        return
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(settings, name)) > 1:
            raise InvalidSettings(f"{name} is {size}; blocks are kept (kv_store_dir) of one rank alone: set 1")
    if settings.device != "cpu":
        raise InvalidSettings(f"device is {settings.device!r}; blocks are kept (kv_store_dir) on 'cpu' alone")
    if not settings.enable_prefix_caching:
        raise InvalidSettings("enable_prefix_caching is off; what is kept (kv_store_dir) are cached prefixes: set it")


def _check_speculation(settings: EngineSettings) -> None:
    method, model = settings.speculation_method, settings.speculation_model
    if method != "off" and settings.max_num_seqs < 2:
        raise InvalidSettings(
            f"speculation_method {method} needs max_num_seqs of at least 2, not "
            f"{settings.max_num_seqs}: drafts have the rows that sequences leave free"
        )
    if (method in {"draft", "eagle"}) != bool(model):
        raise InvalidSettings(
            f"speculation_method is {method} and speculation_model is {model!r}: a model that drafts needs both"
        )
    if settings.asks_model:
        _check_draft_model(settings)


def _check_draft_model(settings: EngineSettings) -> None:
    """Refuse by name what a draft model or a head is not combined with."""
    method = settings.speculation_method
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(settings, name)) > 1:
            raise InvalidSettings(
                f"{name} is {size}; a draft model (speculation_method {method}) is beside one rank: set 1"
            )
    if method in HEADS and settings.enable_lora:
        raise InvalidSettings(
            f"enable_lora is set, and speculation_method is {method}, whose heads know nothing of adapters: use draft, "
            "or suffix"
        )


def _check_class(name: str, value: str, *, none: str) -> None:
    if value != none and not QUALIFIED_NAME.fullmatch(value):
        raise InvalidSettings(f"{name} is {value!r}; the class's qualified name is needed, as in my_package.MyClass")


def check_block_counts(report: MemoryReport, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
    """Raise InvalidArgument, naming both numbers, if this rank cannot hold or not use these counts."""
    if not report.block_bytes:
        _check_no_blocks(num_gpu_blocks, num_cpu_blocks)
        return
    if num_gpu_blocks <= 0:
        raise InvalidArgument(f"num_gpu_blocks is {num_gpu_blocks}; at least 1 is needed")
    if num_cpu_blocks < 0:
        raise InvalidArgument(f"num_cpu_blocks is {num_cpu_blocks}; it cannot be negative")
    if num_gpu_blocks > report.num_gpu_blocks:
        raise InvalidArgument(f"num_gpu_blocks is {num_gpu_blocks}; this rank reported {report.num_gpu_blocks}")
    if num_cpu_blocks > report.num_cpu_blocks:
        raise InvalidArgument(f"num_cpu_blocks is {num_cpu_blocks}; this rank reported {report.num_cpu_blocks}")
    capacity = num_gpu_blocks * report.block_size
    if report.max_model_len > capacity:
        raise InvalidArgument(
            f"num_gpu_blocks {num_gpu_blocks} × block size {report.block_size} = {capacity} tokens; "
            f"the model length {report.max_model_len} needs more"
        )


def _check_no_blocks(num_gpu_blocks: int, num_cpu_blocks: int) -> None:
    for name, count in (("num_gpu_blocks", num_gpu_blocks), ("num_cpu_blocks", num_cpu_blocks)):
        if count:
            raise InvalidArgument(f"{name} is {count}; allowed is 0: the model's task keeps no cache")


def unknown_token(message: Added, vocab_size: int) -> str | None:
    """Return why the model has no row for a token of this request, None if it has one for each; 0 = size not known.

    The front has checked it; this is the net below: one row that is not there would fail its whole batch.
    """
    for field, ids in _token_ids(message):
        if vocab_size and ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            bad = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
            return f"{field} has {bad}; allowed are ids below the vocabulary size {vocab_size}"
    return None


def _token_ids(message: Added) -> Iterator[tuple[str, Sequence[int]]]:
    if isinstance(message, AddPooling):
        yield from ((f"inputs[{place}]", ids) for place, ids in enumerate(message.inputs))
        return
    yield "prompt_token_ids", message.prompt_token_ids
    if isinstance(message, AddWindow):
        yield "language_ids", message.language_ids
        return
    yield "output_token_ids", message.output_token_ids
    yield "prediction_token_ids", message.prediction_token_ids
    yield "logprob_token_ids", message.sampling.logprob_token_ids
