"""The settings of the engine: one frozen struct, parsed once from the command line; given to the engine as JSON.

A field is the one source of its flag: name, default, bounds and help. What else speaks of it (the operator's nouns and
pod arguments, the resource's schema) is compared with it by `tests/operator_/test_engine_settings.py`.
Flags carry the names that vLLM users know. A bad value stops the program at start and names the flag.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dormouse_worker.common.kv_events import OFF, KvEventsConfig
from dormouse_worker.common.memory_settings import MemorySettings, flag

MAX_SPECULATIVE_TOKENS = 64
HEADS = frozenset({"eagle", "mtp"})  # methods of speculation that read the model's states
MAX_COMPILE_SIZE = 1 << 20  # tokens of a pass
FAMILY_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"  # of how a model writes calls or thoughts
AUTO = "auto"  # of what the type of the cache may be: the model's own
NONE = "none"  # of what quantization may be: the weights are as the files have them


class EngineSettings(MemorySettings, frozen=True, kw_only=True):
    """What decides how the engine computes. Its digest tells the operator whether a report is of these settings.

    A size or number of 0 that is a default stands for what its help names in place of it.
    """

    model: Annotated[str, flag("directory with config.json, tokenizer.json and *.safetensors")]
    task: Annotated[
        Literal["auto", "generate", "embed", "classify", "score", "transcribe"],
        flag("what the model is for: auto = as its architecture and sentence-transformers' files say (default)"),
    ] = "auto"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], flag("auto = the model's own (default)")] = (
        "auto"
    )
    load_format: Annotated[
        Literal["auto", "dummy", "sharded_state"],  # auto = safetensors
        flag("dummy = random weights, nothing is read; sharded_state = what SaveShardedState wrote"),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        flag(
            "how plain weights are rounded while they are loaded: int8 = to 8 bits, with a scale for each output; int4 "
            "= to 4 bits, with one for each 64 inputs, the head to 8 (default none = they are as the files have them)"
        ),
    ] = "none"
    model_impl: Annotated[
        Literal["auto", "lean", "transformers"],
        flag("whose forward pass computes: auto = our own where it fits the model, else transformers' (default)"),
    ] = "auto"
    max_model_len: Annotated[
        int, flag("prompt and output together (default: the model's own limit)", "TOKENS", ge=0, le=1 << 24)
    ] = 0
    tokenizer_cache: Annotated[
        str,
        flag(
            "where tokenizers of older formats are kept once they are converted to tokenizer.json "
            "(default: dormouse-tokenizers-UID in the temporary directory)",
            "DIRECTORY",
        ),
    ] = ""
    profile_cache: Annotated[
        str,
        flag(
            "where memory profiles and compiled code are kept: the next start verifies instead of measuring "
            "(default: none is kept)",
            "DIRECTORY",
        ),
    ] = ""
    tool_call_parser: Annotated[
        str,
        flag(
            "how the model writes calls of functions: auto = as its tokenizer_config.json or its chat template says "
            "(default), none = calls are text, else the name of a family of models, of this worker or of a package",
            "NAME",
            pattern=FAMILY_NAME,
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        flag(
            "how the model writes what it thinks: auto = as its tokenizer_config.json or its chat template says "
            "(default), none = thoughts are text, else the name of a family of models, of this worker or of a package",
            "NAME",
            pattern=FAMILY_NAME,
        ),
    ] = "auto"
    image_dir: Annotated[
        str,
        flag(
            "where images lie between the processes of a worker, of a model that reads them; in memory is best "
            "(default: a folder of its own in /dev/shm)",
            "DIRECTORY",
        ),
    ] = ""
    seed: Annotated[int, flag("of random weights (default {default})", ge=0, le=(1 << 63) - 1)] = 0

    device: Annotated[Literal["cpu", "cuda"], flag("where to compute (default {default})")] = "cpu"
    max_num_seqs: Annotated[int, flag("sequences in one batch (default {default})", "N", ge=1, le=1 << 16)] = 64
    max_num_batched_tokens: Annotated[
        int,
        flag(
            "tokens of one forward pass; longer prompts are cut into chunks (default {default})", "N", ge=1, le=1 << 20
        ),
    ] = 2048
    cuda_graphs: Annotated[
        bool,
        flag("cuda: record decode steps as graphs, which cost memory and seconds at the start (default {default})"),
    ] = True
    compile_sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MAX_COMPILE_SIZE)], ...],
        flag(
            "let torch compile the layers for passes of so many tokens: at the start, some seconds for each size; "
            "without effect where our own kernels compute, as on most cpus (default: none)",
            "N,N,...",
            max_length=64,
        ),
    ] = ()
    async_scheduling: Annotated[
        bool,
        flag("cuda, one rank: prepare a batch while the device computes the one before (default {default})"),
    ] = True
    speculation_method: Annotated[
        Literal["off", "auto", "ngram", "suffix", "draft", "eagle", "mtp"],
        flag(
            "where drafts of the next tokens come from, which change nothing but the time: ngram = what followed the "
            "same tokens before, and what callers predict; suffix = earlier answers of the same cache salt, too; "
            "draft = a small model beside, and what callers predict; eagle = a head that reads the model's states, the "
            "same; mtp = the head for multi-token prediction in the model's own checkpoint, the same; "
            "auto = the best known without one, now suffix (default {default})"
        ),
    ] = "off"
    speculation_model: Annotated[
        str,
        flag("directory of the model or head that drafts, of the same tokens, for draft and eagle", "DIRECTORY"),
    ] = ""
    num_speculative_tokens: Annotated[
        int,
        flag(
            "tokens of one draft at most, and fewer than sequences in one batch (default {default})",
            "N",
            ge=1,
            le=MAX_SPECULATIVE_TOKENS,
        ),
    ] = 8
    threads: Annotated[int, flag("compute threads on cpu (default: the container's cpu limit)", "N", ge=0)] = (
        0  # without a limit all cores
    )

    kv_events_config: Annotated[
        KvEventsConfig,
        flag(
            "whether routers are told what is in the prefix cache, in vLLM's words and messages: "
            '{"enable_kv_cache_events": true} publishes them by ZeroMQ; whoever can connect reads all prompts '
            "(default: off)",
            "JSON",
        ),
    ] = OFF

    tensor_parallel_size: Annotated[
        int, flag("ranks that share every layer, all in one pod (default {default})", "N", ge=1, le=64)
    ] = 1
    pipeline_parallel_size: Annotated[
        int, flag("stages that share the layers, a pod each (default {default})", "N", ge=1, le=64)
    ] = 1

    enable_lora: Annotated[bool, flag("serve LoRA adapters beside the base model (default {default})")] = False
    max_loras: Annotated[
        int,
        flag(
            "adapters that one batch may use; each takes memory on the device (default {default})", "N", ge=1, le=1024
        ),
    ] = 1
    max_lora_rank: Annotated[
        int, flag("the highest rank of an adapter; memory is taken for it (default {default})", "N", ge=1, le=512)
    ] = 16
    max_cpu_loras: Annotated[
        int, flag("adapters that are kept in host memory (default: as many as max-loras)", "N", ge=0, le=1 << 16)
    ] = 0

    attention_backend: Annotated[
        str,
        flag(
            "native (kernels of ours for processors), sdpa (torch's operations, in all of the pass), or one of an "
            "installed package (entry point group dormouse.attention_backends); "
            "auto = the fastest that fits the device (default)",
            "NAME",
            min_length=1,
        ),
    ] = "auto"
    runtime: Annotated[
        Literal["dormouse", "vllm"],
        flag(
            "whose engine computes: dormouse = our own (default {default}); vllm = vLLM's, of the interpreter "
            "--engine-python, which has it installed; docs/how-to/vllm.md says what it does not do"
        ),
    ] = "dormouse"
    engine_runtime: Annotated[
        Literal["auto", "torch"],
        flag(
            "cpu: auto = without torch where our kernels compute all of a model, which starts sooner and takes less "
            "memory (default); torch = always with it"
        ),
    ] = "auto"
    worker_cls: Annotated[
        str,
        flag("a worker class of your own instead of the device's (default auto = the device's)", "MODULE.CLASS"),
    ] = "auto"
    worker_extension_cls: Annotated[
        str, flag("a class whose methods the worker gets in addition (default none)", "MODULE.CLASS")
    ] = ""

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 over all settings but those that each pod has for itself.

        These are the place of images, and whom it tells of its cache.
        """
        everywhere = msgspec.structs.replace(self, image_dir="", kv_events_config=OFF)
        return hashlib.sha256(msgspec.json.encode(everywhere, order="sorted")).hexdigest()

    @property
    def asks_model(self) -> bool:
        """Return whether a small model or a head drafts, which has weights of its own."""
        return self.speculation_method in {"draft", *HEADS}

    @property
    def max_draft_tokens(self) -> int:
        """Return how many tokens a draft may have; 0 = there are none."""
        return 0 if self.speculation_method == "off" else min(self.num_speculative_tokens, self.max_num_seqs - 1)

    @property
    def model_path(self) -> Path:
        """Return the model's directory."""
        return Path(self.model)
