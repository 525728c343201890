"""The weights of a soft prompt as peft saves them, checked by their header against the base. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.files.soft_prompt_config import SoftPromptConfig

TENSOR = "prompt_embeddings"


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """Which soft prompts a base takes."""

    size: int  # of an embedded token
    most_tokens: int  # that a slot holds


NO_ROOM = PromptRoom(0, 0)


def check_soft_prompt(
    tensors: Mapping[str, StoredTensor], config: SoftPromptConfig, room: PromptRoom, dtypes: tuple[str, ...]
) -> StoredTensor:
    """Return the vectors [num_tokens, size]. Raises AdapterInvalid naming the culprit and what is allowed."""
    if config.size != room.size:
        raise AdapterInvalid(f"token_dim is {config.size}; embedded tokens of this base have {room.size} numbers")
    if config.num_tokens > room.most_tokens:
        raise AdapterInvalid(
            f"num_virtual_tokens is {config.num_tokens}; a slot of max_lora_rank holds {room.most_tokens}: raise it"
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
