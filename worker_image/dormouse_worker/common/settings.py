"""The settings of the engine: one frozen struct, parsed once from the command line; given to the engine as JSON.

A field is the one source of its flag: name, default, bounds and help. What else speaks of it (the operator's nouns and
pod arguments, the resource's schema) is compared with it by `tests/operator_/test_engine_settings.py`.
Flags carry the names that vLLM users know. A bad value stops the program at start and names the flag.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

MAX_SPECULATIVE_TOKENS = 64
MAX_COMPILE_SIZE = 1 << 20  # tokens of a pass
FAMILY_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"  # of how a model writes calls or thoughts
AUTO = "auto"  # of what the type of the cache may be: the model's own
NONE = "none"  # of what quantization may be: the weights are as the files have them


def _flag(what: str, metavar: str | None = None, **bounds: Any) -> msgspec.Meta:
    """Return what a flag's help says, `{default}` being the default, and what may be said."""
    return msgspec.Meta(description=what, extra={"metavar": metavar}, **bounds)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how the engine computes. Its digest tells the operator whether a report is of these settings.

    A size or number of 0 that is a default stands for what its help names in place of it.
    """

    model: Annotated[str, _flag("directory with config.json, tokenizer.json and *.safetensors")]
    task: Annotated[
        Literal["auto", "generate", "embed", "classify", "score", "transcribe"],
        _flag("what the model is for: auto = as its architecture and sentence-transformers' files say (default)"),
    ] = "auto"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], _flag("auto = the model's own (default)")] = (
        "auto"
    )
    load_format: Annotated[
        Literal["auto", "dummy", "sharded_state"],  # auto = safetensors
        _flag("dummy = random weights, nothing is read; sharded_state = what SaveShardedState wrote"),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        _flag(
            "how plain weights are rounded while they are loaded: int8 = to 8 bits, with a scale for each output; int4 "
            "= to 4 bits, with one for each 64 inputs, the head to 8 (default none = they are as the files have them)"
        ),
    ] = "none"
    model_impl: Annotated[
        Literal["auto", "lean", "transformers"],
        _flag("whose forward pass computes: auto = our own where it fits the model, else transformers' (default)"),
    ] = "auto"
    max_model_len: Annotated[
        int, _flag("prompt and output together (default: the model's own limit)", "TOKENS", ge=0, le=1 << 24)
    ] = 0
    tokenizer_cache: Annotated[
        str,
        _flag(
            "where tokenizers of older formats are kept once they are converted to tokenizer.json "
            "(default: dormouse-tokenizers-UID in the temporary directory)",
            "DIRECTORY",
        ),
    ] = ""
    profile_cache: Annotated[
        str,
        _flag(
            "where memory profiles and compiled code are kept: the next start verifies instead of measuring "
            "(default: none is kept)",
            "DIRECTORY",
        ),
    ] = ""
    tool_call_parser: Annotated[
        str,
        _flag(
            "how the model writes calls of functions: auto = as its tokenizer_config.json or its chat template says "
            "(default), none = calls are text, else the name of a family of models, of this worker or of a package",
            "NAME",
            pattern=FAMILY_NAME,
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        _flag(
            "how the model writes what it thinks: auto = as its tokenizer_config.json or its chat template says "
            "(default), none = thoughts are text, else the name of a family of models, of this worker or of a package",
            "NAME",
            pattern=FAMILY_NAME,
        ),
    ] = "auto"
    image_dir: Annotated[
        str,
        _flag(
            "where images lie between the processes of a worker, of a model that reads them; in memory is best "
            "(default: a folder of its own in /dev/shm)",
            "DIRECTORY",
        ),
    ] = ""
    seed: Annotated[int, _flag("of random weights (default {default})", ge=0, le=(1 << 63) - 1)] = 0

    device: Annotated[Literal["cpu", "cuda"], _flag("where to compute (default {default})")] = "cpu"
    max_num_seqs: Annotated[int, _flag("sequences in one batch (default {default})", "N", ge=1, le=1 << 16)] = 64
    max_num_batched_tokens: Annotated[
        int,
        _flag(
            "tokens of one forward pass; longer prompts are cut into chunks (default {default})", "N", ge=1, le=1 << 20
        ),
    ] = 2048
    gpu_memory_utilization: Annotated[
        float,
        _flag(
            "share of the device's memory (cpu: of the memory limit) to use, above 0, at most 1 (default {default})",
            "SHARE",
            gt=0,
            le=1,
        ),
    ] = 0.9
    memory_limit_bytes: Annotated[
        int, _flag("cpu: the memory to share (default: the container's limit)", "SIZE", ge=0)
    ] = 0
    device_memory_budget_bytes: Annotated[
        int,
        _flag(
            "most to take of the device's memory, where that is less than the share (default: the share alone); "
            "a grant brings its own",
            "SIZE",
            ge=0,
        ),
    ] = 0
    device_memory_reserve_bytes: Annotated[
        int,
        _flag(
            "what of the device's share is left to others, where no budget is set (default {default}); "
            "a grant brings its own",
            "SIZE",
            ge=0,
        ),
    ] = 0
    device_memory_sharers: Annotated[
        int,
        _flag(
            "processes that divide among them what the reserve leaves (default {default}); a grant brings its own",
            "N",
            ge=1,
            le=256,
        ),
    ] = 1
    expected_device: Annotated[
        str, _flag("start on this GPU only, by its UUID (default: on any); a grant brings its own", "UUID")
    ] = ""
    kv_cache_memory_bytes: Annotated[
        int, _flag("exact size of the KV cache instead of the measured rest", "SIZE", ge=0)
    ] = 0
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        _flag(
            "type of the keys and values in the cache: auto = the model's own (default), int8 = 8 bits with a scale "
            "for each head of each token, which is nearly twice as many blocks; on processors"
        ),
    ] = "auto"
    prefault_kv_cache: Annotated[
        bool,
        _flag(
            "cpu: take the memory of the KV cache when it is allocated, not when blocks are first used "
            "(default {default})"
        ),
    ] = False
    block_size: Annotated[
        Literal[1, 2, 4, 8, 16, 32, 64, 128, 256], _flag("tokens per block (default {default})", "TOKENS")
    ] = 16
    swap_space_bytes: Annotated[int, _flag("host memory for swapped blocks (default {default})", "SIZE", ge=0)] = 0
    enable_prefix_caching: Annotated[
        bool, _flag("keep the blocks of ended requests and share equal prefixes (default {default})")
    ] = True
    keep_host_copy: Annotated[
        bool,
        _flag("cuda: keep the weights in pinned host memory too, so that a sleep copies nothing (default {default})"),
    ] = True
    kv_store_dir: Annotated[
        str,
        _flag(
            "cpu, one rank: where cached prefixes are kept on disk, for after a sleep or for the next process; "
            "workers may share it (default: none is kept)",
            "DIRECTORY",
        ),
    ] = ""
    kv_store_size_bytes: Annotated[
        int, _flag("most that the files below kv-store-dir take (default 10 GiB)", "SIZE", ge=1 << 20)
    ] = 10 << 30
    keep_prefix_cache: Annotated[
        bool, _flag("at sleep level 1 keep cached prefixes in host memory (default {default})")
    ] = False
    cuda_graphs: Annotated[
        bool,
        _flag("cuda: record decode steps as graphs, which cost memory and seconds at the start (default {default})"),
    ] = True
    compile_sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_COMPILE_SIZE)], ...],
        _flag(
            "let torch compile the layers for passes of so many tokens: at the start, some seconds for each size; "
            "without effect where our own kernels compute, as on most cpus (default: none)",
            "N,N,...",
            max_length=64,
        ),
    ] = ()
    async_scheduling: Annotated[
        bool,
        _flag("cuda, one rank: prepare a batch while the device computes the one before (default {default})"),
    ] = True
    speculation_method: Annotated[
        Literal["off", "auto", "ngram", "suffix", "draft"],
        _flag(
            "where drafts of the next tokens come from, which change nothing but the time: ngram = what followed the "
            "same tokens before, and what callers predict; suffix = earlier answers of the same cache salt, too; "
            "draft = a small model beside, and what callers predict; "
            "auto = the best known without one, now suffix (default {default})"
        ),
    ] = "off"
    speculation_model: Annotated[
        str,
        _flag("directory of the model that drafts, of the same tokens, where the method is draft", "DIRECTORY"),
    ] = ""
    num_speculative_tokens: Annotated[
        int,
        _flag(
            "tokens of one draft at most, and fewer than sequences in one batch (default {default})",
            "N",
            ge=1,
            le=MAX_SPECULATIVE_TOKENS,
        ),
    ] = 8
    threads: Annotated[int, _flag("compute threads on cpu (default: the container's cpu limit)", "N", ge=0)] = (
        0  # without a limit all cores
    )

    tensor_parallel_size: Annotated[
        int, _flag("ranks that share every layer, all in one pod (default {default})", "N", ge=1, le=64)
    ] = 1
    pipeline_parallel_size: Annotated[
        int, _flag("stages that share the layers, a pod each (default {default})", "N", ge=1, le=64)
    ] = 1

    enable_lora: Annotated[bool, _flag("serve LoRA adapters beside the base model (default {default})")] = False
    max_loras: Annotated[
        int,
        _flag(
            "adapters that one batch may use; each takes memory on the device (default {default})", "N", ge=1, le=1024
        ),
    ] = 1
    max_lora_rank: Annotated[
        int, _flag("the highest rank of an adapter; memory is taken for it (default {default})", "N", ge=1, le=512)
    ] = 16
    max_cpu_loras: Annotated[
        int, _flag("adapters that are kept in host memory (default: as many as max-loras)", "N", ge=0, le=1 << 16)
    ] = 0

    attention_backend: Annotated[
        str,
        _flag(
            "native (kernels of ours for processors), sdpa (torch's operations, in all of the pass), or one of an "
            "installed package (entry point group dormouse.attention_backends); "
            "auto = the fastest that fits the device (default)",
            "NAME",
            min_length=1,
        ),
    ] = "auto"
    runtime: Annotated[
        Literal["dormouse", "vllm"],
        _flag(
            "whose engine computes: dormouse = our own (default {default}); vllm = vLLM's, of the interpreter "
            "--engine-python, which has it installed; docs/how-to/vllm.md says what it does not do"
        ),
    ] = "dormouse"
    engine_runtime: Annotated[
        Literal["auto", "torch"],
        _flag(
            "cpu: auto = without torch where our kernels compute all of a model, which starts sooner and takes less "
            "memory (default); torch = always with it"
        ),
    ] = "auto"
    worker_cls: Annotated[
        str,
        _flag("a worker class of your own instead of the device's (default auto = the device's)", "MODULE.CLASS"),
    ] = "auto"
    worker_extension_cls: Annotated[
        str, _flag("a class whose methods the worker gets in addition (default none)", "MODULE.CLASS")
    ] = ""

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 over all settings but the place of images, which each pod has for itself."""
        everywhere = msgspec.structs.replace(self, image_dir="")
        return hashlib.sha256(msgspec.json.encode(everywhere, order="sorted")).hexdigest()

    @property
    def max_draft_tokens(self) -> int:
        """Return how many tokens a draft may have; 0 = there are none."""
        return 0 if self.speculation_method == "off" else min(self.num_speculative_tokens, self.max_num_seqs - 1)

    @property
    def model_path(self) -> Path:
        """Return the model's directory."""
        return Path(self.model)
