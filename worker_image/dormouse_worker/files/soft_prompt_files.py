"""The weights of a soft prompt as peft saves them, checked by their header against the base. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.files.soft_prompt_config import KeyShape, SoftPromptConfig

TENSOR = "prompt_embeddings"


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """Which soft prompts a base takes."""

    size: int  # of an embedded token
    num_numbers: int  # that a slot holds
    keys: KeyShape | str = "its cache is not known"  # what its cache keeps of a token, or why none can be brought


NO_ROOM = PromptRoom(0, 0)


def check_soft_prompt(
    tensors: Mapping[str, StoredTensor], config: SoftPromptConfig, room: PromptRoom, dtypes: tuple[str, ...]
) -> StoredTensor:
    """Return the vectors [num_tokens, size]. Raises AdapterInvalid naming the culprit and what is allowed."""
    _check_size(config, room)
    if config.num_tokens > (most := room.num_numbers // config.size):
        raise AdapterInvalid(
            f"num_virtual_tokens is {config.num_tokens}; a slot of max_lora_rank holds {most}: raise it"
        )
    for name in tensors:
        if name != TENSOR:
            raise AdapterInvalid(f"tensor {name!r} is none of a soft prompt's, which is {TENSOR}; save it with peft")
    if (found := tensors.get(TENSOR)) is None:
        raise AdapterInvalid(f"the weights have no tensor {TENSOR}; copy the adapter again")
    wanted = (config.num_tokens, config.size)
    if tuple(found.shape) != wanted:
        raise AdapterInvalid(f"{TENSOR} is {list(found.shape)}; {list(wanted)} fits num_virtual_tokens and token_dim")
    if found.dtype not in dtypes:
        raise AdapterInvalid(f"{TENSOR} is of type {found.dtype}; allowed are {', '.join(dtypes)}")
    return found


def _check_size(config: SoftPromptConfig, room: PromptRoom) -> None:
    if config.keys is None:
        if config.size != room.size:
            raise AdapterInvalid(f"token_dim is {config.size}; embedded tokens of this base have {room.size} numbers")
        return
    if isinstance(room.keys, str):
        raise AdapterInvalid(f"peft_type is {config.peft_type!r}, which brings keys and values; {room.keys}")
    if config.keys != room.keys:
        raise AdapterInvalid(
            f"num_layers, num_attention_heads and token_dim say {config.keys}; this base keeps {room.keys}"
        )
