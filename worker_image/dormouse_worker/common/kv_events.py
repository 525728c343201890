"""What is told of the KV cache to routers of others: vLLM's settings and vLLM's messages, by its names.

A batch is `[time, [event, …], 0]`, an event a map with its `type`: https://github.com/vllm-project/vllm/pull/42892.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

MAX_STEPS = 100_000
MEDIUM = "GPU"  # vLLM's word for the engine's own cache, wherever it computes
FULL_ATTENTION, SLIDING_WINDOW = "full_attention", "sliding_window"
_ENDPOINT = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.*]+\]|[A-Za-z0-9_.-]+):(\*|[1-9]\d{0,4})|ipc:///\S{1,100}")
Steps = Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `KVEventsConfig`. Defaults that would let a slow subscriber keep a gigabyte are smaller."""

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"  # bound where it has a * or :: or is ipc, else connected to
    replay_endpoint: str | None = None  # None = nothing is sent again
    buffer_steps: Steps = 10_000  # batches that are kept to be sent again, and at most MAX_KEPT_BYTES of them
    hwm: Steps = 1_000  # batches that wait for one subscriber; of more, it misses some
    max_queue_size: Steps = 10_000  # batches that wait to be published: none ever do
    topic: Annotated[str, msgspec.Meta(max_length=512)] = ""

    @property
    def is_on(self) -> bool:
        """Return whether anything is published."""
        return self.enable_kv_cache_events and self.publisher == "zmq"


OFF = KvEventsConfig()


def read_config(text: str) -> KvEventsConfig:
    """Return what JSON says. Raises ValueError naming the field, its value and what is allowed."""
    try:
        config = msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if config.publisher not in {"zmq", "null"}:
        raise ValueError(f"publisher is {config.publisher!r}; allowed are zmq and null")
    for name in ("endpoint", "replay_endpoint"):
        if (address := getattr(config, name)) is not None and not _is_endpoint(address):
            raise ValueError(f"{name} is {address!r}; write tcp://*:PORT, tcp://HOST:PORT or ipc:///PATH")
    if config.replay_endpoint is not None and not is_bound(config.replay_endpoint):
        raise ValueError(f"replay_endpoint is {config.replay_endpoint!r}; callers connect to it: write tcp://*:PORT")
    return config


def is_bound(endpoint: str) -> bool:
    """Return whether others connect to it, by vLLM's rule; else it is connected to."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def _is_endpoint(address: str) -> bool:
    match = _ENDPOINT.fullmatch(address)
    return match is not None and (match[2] is None or match[2] == "*" or int(match[2]) <= 65535)


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks behind each other that later requests may begin with."""

    block_hashes: list[int]
    parent_block_hash: int | None  # None = the first begins a sequence
    token_ids: list[int]  # of all of them
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None  # the adapter's digest, which is what an engine knows of it
    extra_keys: list[list[str] | None] | None = None  # for each block what it depends on besides tokens
    group_idx: int | None = None  # of the layers that these are blocks of
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks that nobody finds any more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """Nothing is known."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """What one message says, in the order in which it happened."""

    ts: float  # seconds since 1970
    events: list[KvEvent]
    data_parallel_rank: int | None = 0
