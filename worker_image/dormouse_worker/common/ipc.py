"""What the front and an engine process say to each other: msgspec structs, in the frames of `frames`.

The front sends `FrontMessage`s, the engine `EngineMessage`s.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dormouse_worker.common.commands import Command
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.kv_source import KvSource
from dormouse_worker.common.sides import Sides
from dormouse_worker.common.task_messages import AddDecision, AddPooling, AddWindow, PooledOutput, WindowOutput
from dormouse_worker.common.tasks import GENERATE


class State(StrEnum):
    """The life of a worker; the allowed transitions stand in `lifecycle`."""

    STARTING = "STARTING"
    LOADING = "LOADING"
    PROFILED = "PROFILED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    DRAINING = "DRAINING"
    ASLEEP = "ASLEEP"
    WAKING = "WAKING"
    FAILED = "FAILED"
    STANDBY = "STANDBY"  # the front's own word: there is no engine to say it


class Sampling(msgspec.Struct, frozen=True):
    """How to choose tokens; every field is set (the front fills the defaults). Names as in `SamplingParams`."""

    temperature: float
    top_p: float
    top_k: int  # 0 = all
    min_p: float
    seed: int  # unsigned 64 bit
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()  # the model's end-of-sequence ids included, unless ignore_eos
    logprobs: int | None = None  # None = none; k = of the sampled token and the k likeliest
    choice_index: int = 0  # keys the random numbers together with the seed
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] = ()  # empty = all
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # the last token of a sequence is forbidden after the others
    prompt_logprobs: int | None = None  # like `logprobs`, for every prompt token but the first
    grammar: Grammar | None = None  # binds the output; its end is an end whatever min_tokens says
    logprob_token_ids: tuple[int, ...] = ()  # whose log-probabilities are told at each position; `logprobs` is set then


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A validated request: the engine may assert its limits, the user cannot reach those asserts."""

    request_id: str  # unique for the life of the front
    prompt_token_ids: list[int]
    sampling: Sampling
    output_token_ids: list[int] = []  # what another worker has generated already; counts as output
    priority: int = 0  # lower goes first; equal ones in order of arrival
    cache_salt: str = ""  # only requests of one salt share cached prefixes
    adapter: str = ""  # the digest of a LoRA adapter that the engine holds; "" = the base model alone
    prediction_token_ids: list[int] = []  # the output as its caller expects it: changes nothing but the time
    images: list[ImageInput] = []  # in the order of their tokens; the front deletes their files once this has ended
    kv_source: KvSource | None = None  # the worker that had the sequence
    num_source_tokens: int = 0  # the first of the prompt, which an encoder reads: see `sides`; 0 = there is no encoder
    remote_decode: bool = False  # another worker goes on with it once its prompt is computed


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Free these sequences and their blocks; unknown ids are ignored (they may just have ended)."""

    request_ids: list[str]


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Whether sequences are to go on elsewhere, and their blocks with them. It may come twice, and too late."""

    is_leaving: bool
    to_peers: bool = False  # other workers can ask this one for blocks; else only those who share its store read them


class CommandRequest(msgspec.Struct, frozen=True, tag=True):
    """One command for the rank's worker; answered by one `CommandResult` with the same id."""

    command_id: int
    command: Command


class MemoryReport(msgspec.Struct, frozen=True):
    """What one rank measured; fields and units as in the protobuf message of this name."""

    rank: int
    total_bytes: int
    gpu_memory_utilization: float
    weights_bytes: int
    peak_activation_bytes: int
    non_torch_bytes: int
    kv_cache_bytes: int
    block_bytes: int
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    seconds: float
    device: str
    limited_by: str
    max_model_len: int
    graph_bytes: int = 0
    measured_by: str = ""
    image_rows: int = 0  # that the cache of encoded images holds, in tokens; 0 = the model reads no images
    images_are_whole: bool = False  # an image's tokens are computed in one pass
    draft_bytes: int = 0  # of the weights, the draft model's


class RankStatus(msgspec.Struct, frozen=True):
    """One rank of a group, as its leader knows it."""

    rank: int
    pod: str = ""  # the name of the pod in which it runs
    report: MemoryReport | None = None  # None before its profile


NATIVE = "native"


class ModelInfo(msgspec.Struct, frozen=True):
    """What the engine knows of the model once its weights are loaded; completes what the front read from files."""

    num_parameters: int
    dtype: str
    load_bytes: int = 0  # of all weights, read at the first load
    load_seconds: float = 0.0
    compute_path: str = ""  # which forward pass computes, and why no faster one; its first word NATIVE: our kernels
    vocab_size: int = 0  # rows of the embedding; 0 = not told
    task: str = GENERATE
    embedding_size: int = 0  # dimensions of a vector; 0 = it makes none
    dimensions: tuple[int, ...] = ()  # to which vectors may be cut; () = any up to the size
    labels: tuple[str, ...] = ()  # of a model that classifies or scores
    sides: Sides | None = None  # where an encoder reads the prompts


class MadeTokenizer(msgspec.Struct, frozen=True):
    """What became of making a tokenizer.json; both "" where there is none to make."""

    path: str = ""
    problem: str = ""  # why it could not be made, and what to do


class EngineStatus(msgspec.Struct, frozen=True, tag=True):
    """Sent by the engine whenever its state changes, with everything that holds then (never a delta)."""

    state: State
    report: MemoryReport | None = None
    model: ModelInfo | None = None
    num_gpu_blocks: int = 0
    num_cpu_blocks: int = 0
    sleep_level: int = 0
    sleeping_tags: tuple[str, ...] = ()  # in ASLEEP: not all of them after a wake of a part
    residual_bytes: int = 0
    freed_bytes: int = 0
    last_sleep_seconds: float = 0.0
    last_wake_seconds: float = 0.0
    sleep_phases: dict[str, float] = {}  # seconds of the last sleep by phase: save, drop
    wake_phases: dict[str, float] = {}  # seconds of the last wake by phase: reserve, weights, kv_cache, verify
    host_copy_bytes: int = 0  # host memory that holds a copy of weights or cache; asleep or awake
    failure_reason: str = ""  # CamelCase, in FAILED
    failure_message: str = ""
    tokenizer_path: str = ""  # the tokenizer.json that the engine made for a model that has none
    tokenizer_problem: str = ""  # why it could not make one, and what to do; "" = nothing to make one from
    ranks: tuple[RankStatus, ...] = ()  # of a group; empty where one rank is all there is


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one output position."""

    sampled: float
    top_ids: list[int]  # likeliest first
    top_logprobs: list[float]
    named: list[float] = []  # of `logprob_token_ids`, in their order


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step's new tokens of one request; `finish_reason` set = the engine has freed it."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None  # stop | length | abort
    logprobs: list[TokenLogprobs] | None = None
    queue_seconds: float = 0.0  # accepted → first scheduled; set in the first output
    prefill_seconds: float = 0.0  # first scheduled → first token; set in the first output
    cached_tokens: int = 0  # prompt tokens found in the prefix cache; set in the first output
    prompt_logprobs: list[TokenLogprobs] | None = None  # the next part of them; may come with no tokens
    accepted_prediction_tokens: int = 0  # since the last output: of what the caller predicted, tried and right
    rejected_prediction_tokens: int = 0  # tried and wrong
    draft_tokens: int = 0  # since the last output: of drafts, whoever proposed them
    accepted_draft_tokens: int = 0  # of these, taken


class DraftCounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of drafts, by names of vLLM's metrics. A draft is what one sequence had to score in one pass."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens_per_pos: list[int]  # drafts that were right as far as their first token, their second, …
    num_model_failures: int = 0  # times that the draft model was asked and failed, or was not there


class StoreCounts(msgspec.Struct, frozen=True):
    """What became of blocks between the cache and the store that outlives the engine, since the message before."""

    found: int = 0  # blocks of others that were not known before
    fetched: int = 0  # of the hits: blocks that another worker sent
    hits: int = 0  # blocks read in place of being computed
    read_bytes: int = 0
    writes: int = 0  # blocks written
    written_bytes: int = 0
    handed_over: int = 0  # blocks of streams that were to go on elsewhere
    misses: dict[str, int] = {}  # reason → blocks that were thought to be there, or were not kept
    stored_bytes: int = 0  # what the store holds now


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """Everything that one engine step produced, and the load after it. Also the step heartbeat."""

    outputs: list[TokenOutput]
    running: int
    waiting: int
    kv_cache_usage: float  # 0 to 1
    failed: dict[str, str] = {}  # request id → why; a forward pass that raised fails only its batch
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache since the message before
    prefix_hits: int = 0  # of these, found
    preemptions: int = 0  # since the message before
    not_finite: int = 0  # of the failed: requests whose logits were not finite
    refused: dict[str, str] = {}  # request id → why; what it asks for cannot be kept any further
    pooled: list[PooledOutput] = []
    windows: list[WindowOutput] = []
    drafts: DraftCounts | None = None  # since the message before; None = there were none
    kv_store: StoreCounts | None = None  # None = nothing was counted
    mm_cache_queries: int = 0  # images of requests that were admitted since the message before
    mm_cache_hits: int = 0  # of these, not encoded anew
    kv_events: list[bytes] = []  # what routers are told, as `kv_events` has it: encoded, in order


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The engine loop came round; sent at least once a second while nothing runs."""


class CommandResult(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `CommandRequest`. `error_reason` "" = done; else CamelCase, with the sentence for the caller."""

    command_id: int
    error_reason: str = ""  # InvalidArgument | WrongState | InsufficientMemory | GoldenTokensDiffer | Internal | …
    error_message: str = ""
    value: int | str = ""  # what it returns: prepare_wake_up the missing bytes, stop_profile the trace's path


Added = AddRequest | AddPooling | AddWindow  # what an engine takes one by one
FrontMessage = Added | AddDecision | AbortRequests | Leave | CommandRequest
EngineMessage = EngineStatus | StepOutputs | Heartbeat | CommandResult
