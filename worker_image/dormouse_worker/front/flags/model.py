"""The flags that decide how the engine computes, and the `EngineSettings` that they make."""

from __future__ import annotations

import argparse

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.validation import DTYPES, LOAD_FORMATS, MODEL_IMPLS
from dormouse_worker.front.flags import flag_types


def engine_settings(flags: argparse.Namespace) -> EngineSettings:
    """Return the settings that parsed flags say."""
    return EngineSettings(
        model=flags.model,
        device=flags.device,
        dtype=flags.dtype,
        tensor_parallel_size=flags.tensor_parallel_size,
        pipeline_parallel_size=flags.pipeline_parallel_size,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        memory_limit_bytes=flags.memory_limit,
        kv_cache_memory_bytes=flags.kv_cache_memory,
        prefault_kv_cache=flags.prefault_kv_cache,
        block_size=flags.block_size,
        swap_space_bytes=flags.swap_space,
        enable_prefix_caching=flags.enable_prefix_caching,
        load_format=flags.load_format,
        keep_host_copy=flags.keep_host_copy,
        keep_prefix_cache=flags.keep_prefix_cache,
        model_impl=flags.model_impl,
        seed=flags.seed,
        tokenizer_cache=flags.tokenizer_cache,
        profile_cache=flags.profile_cache,
        attention_backend=flags.attention_backend,
        worker_cls=flags.worker_cls,
        worker_extension_cls=flags.worker_extension_cls,
        cuda_graphs=flags.cuda_graphs,
        compile_sizes=flags.compile_sizes,
        async_scheduling=flags.async_scheduling,
        threads=flags.threads,
    )


def add_model_flags(group: argparse._ArgumentGroup) -> None:
    """Add what concerns the model: where it lies, how it is read."""
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
    add(
        "--profile-cache",
        default="",
        metavar="DIRECTORY",
        help="where memory profiles and compiled code are kept: the next start verifies instead of measuring "
        "(default: none is kept)",
    )
    add("--seed", default=0, type=flag_types.at_least(0), help="of random weights (default 0)")


def add_engine_flags(group: argparse._ArgumentGroup) -> None:
    """Add what concerns the device, the batch and the cache."""
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
    add(
        "--prefault-kv-cache",
        default=False,
        action=argparse.BooleanOptionalAction,
        help="cpu: take the memory of the KV cache when it is allocated, not when blocks are first used (default off)",
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
        "--keep-host-copy",
        default=True,
        action=argparse.BooleanOptionalAction,
        help="cuda: keep the weights in pinned host memory too, so that a sleep copies nothing (default on)",
    )
    add(
        "--keep-prefix-cache",
        default=False,
        action=argparse.BooleanOptionalAction,
        help="at sleep level 1 keep cached prefixes in host memory (default off)",
    )
    add(
        "--cuda-graphs",
        default=True,
        action=argparse.BooleanOptionalAction,
        help="cuda: record decode steps as graphs, which cost memory and seconds at the start (default on)",
    )
    add(
        "--compile-sizes",
        default=(),
        type=flag_types.sizes,
        metavar="N,N,...",
        help="let torch compile the layers for passes of so many tokens: at the start, some seconds for each size; "
        "without effect where our own kernels compute, as on most cpus (default: none)",
    )
    add(
        "--async-scheduling",
        default=True,
        action=argparse.BooleanOptionalAction,
        help="cuda, one rank: prepare a batch while the device computes the one before (default on)",
    )
    add(
        "--threads",
        default=0,
        type=flag_types.at_least(0),
        metavar="N",
        help="compute threads on cpu (default: the container's cpu limit)",
    )
