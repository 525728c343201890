"""The worker's settings: one frozen dataclass, parsed once from the command line; given to the engine as JSON.

Flags carry the names that vLLM users know. A bad value stops the program at start and names the flag.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how the engine computes. Its digest tells the operator whether a report is of these settings."""

    model: str  # directory with config.json, tokenizer and *.safetensors
    device: str = "cpu"  # cpu | cuda
    dtype: str = "auto"  # auto = the model's own; float32 | bfloat16 | float16
    tensor_parallel_size: int = 1  # ranks that share every layer; all in one pod
    pipeline_parallel_size: int = 1  # stages that share the layers; a pod each
    max_model_len: int = 0  # tokens; 0 = the model's own limit
    max_num_seqs: int = 64  # sequences in one batch
    max_num_batched_tokens: int = 2048  # tokens of one forward pass: chunked prefill cuts longer prompts
    gpu_memory_utilization: float = 0.9  # share of the device's memory (cpu: of the memory limit) to use, in (0, 1]
    memory_limit_bytes: int = 0  # cpu: the memory to share; 0 = the container's cgroup limit
    kv_cache_memory_bytes: int = 0  # exact size of the cache instead of the measured rest; 0 = measure
    block_size: int = 16  # tokens per block
    prefault_kv_cache: bool = False  # cpu: take the cache's memory when it is allocated, not block by block
    swap_space_bytes: int = 0  # host memory for swapped blocks
    enable_prefix_caching: bool = True  # keep the blocks of ended requests and share equal prefixes
    load_format: str = "auto"  # auto = safetensors; dummy = random weights; sharded_state = what SaveShardedState wrote
    keep_host_copy: bool = (
        True  # device with memory of its own: weights stay in host memory, so that a sleep is an unmap
    )
    keep_prefix_cache: bool = False  # level 1: cached blocks go to host memory and come back
    model_impl: str = "auto"  # auto = our own forward pass where it fits, else transformers'; lean | transformers
    seed: int = 0
    tokenizer_cache: str = ""  # directory for converted tokenizers; "" = one in the temporary directory
    attention_backend: str = "auto"  # auto = the fastest that fits the device; else ours or an installed package's
    worker_cls: str = "auto"  # qualified name of a WorkerBase of one's own; auto = the device's
    worker_extension_cls: str = ""  # qualified name of a class whose methods the worker gets; "" = none
    profile_cache: str = ""  # directory that remembers profiles and compiled code for the next start; "" = none does
    compile_sizes: tuple[int, ...] = ()  # tokens of passes whose layers torch compiles, unless our kernels compute
    cuda_graphs: bool = True  # cuda: record decode steps; off saves their memory and the time to record them
    async_scheduling: bool = True  # cuda, one rank: prepare a batch while the device computes the one before
    threads: int = 0  # torch threads on cpu; 0 = the container's cpu limit, else all cores

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 over all settings."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def model_path(self) -> Path:
        """Return the model's directory."""
        return Path(self.model)
