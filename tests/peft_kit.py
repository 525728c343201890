"""peft itself as the oracle: it makes adapters and says what a model with one says."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM

from dormouse_worker.model.testing_reference import NUM_KEPT, Stamp, stamp_of

SOFT_PROMPTS: Any = {
    "PROMPT_TUNING": PromptTuningConfig,
    "P_TUNING": PromptEncoderConfig,
    "PREFIX_TUNING": PrefixTuningConfig,
}


@contextmanager
def _peft_asks_what_is_deprecated() -> Iterator[None]:
    """Let peft ask a model for what transformers is about to take away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield


@contextmanager
def _peft_finds_positions_itself() -> Iterator[None]:
    """Let peft ignore the positions that transformers hands it beside a soft prompt: it counts the prompt in."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Position ids are not supported", category=UserWarning)
        yield


LOUD = 0.6  # of an adapter: a trained model answers otherwise at once


def _base(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def make_adapter(
    directory: Path,
    base: Path,
    *,
    rank: int,
    targets: str | Sequence[str] = "all-linear",
    loudness: float = 0.2,
    **fields: Any,
) -> Path:
    """Have peft write an adapter with random weights, at first as loud as the base's own, and return its directory."""
    torch.manual_seed(rank)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=targets if isinstance(targets, str) else list(targets),
        init_lora_weights=False,
        **fields,
    )
    with _peft_asks_what_is_deprecated():
        model = get_peft_model(_base(base), config)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(weight, std=loudness / rank**0.5)
    model.save_pretrained(directory)
    return directory


def make_soft_prompt(directory: Path, base: Path, *, kind: str, num_tokens: int, loudness: float = 0.7) -> Path:
    """Have peft write a soft prompt of a kind, with random weights, and return its directory."""
    torch.manual_seed(num_tokens)
    more: dict[str, Any] = {"encoder_hidden_size": 24} if kind == "P_TUNING" else {}
    config = SOFT_PROMPTS[kind](task_type="CAUSAL_LM", num_virtual_tokens=num_tokens, **more)
    with _peft_asks_what_is_deprecated():
        model = get_peft_model(_base(base), config)
    for weight in model.prompt_encoder.parameters():
        torch.nn.init.normal_(weight, std=loudness)
    model.save_pretrained(directory)
    return directory


@functools.lru_cache(maxsize=NUM_KEPT)
def _read(folders: tuple[Path, ...], stamps: tuple[Stamp, ...], ignore_eos: bool) -> Any:
    """Return a base with its adapter, if there is one; as `read_reference` does."""
    del stamps
    base, *adapters = folders
    with torch.random.fork_rng(devices=[]), _peft_asks_what_is_deprecated():
        model = PeftModel.from_pretrained(_base(base), str(adapters[0])) if adapters else _base(base)
    if ignore_eos:
        model.generation_config.eos_token_id = None
    return model


def greedy_tokens(
    base: Path,
    adapter: Path | None,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    ignore_eos: bool = False,
    **sampling: Any,
) -> list[int]:
    """Return the tokens of peft's greedy `generate` in float32; without an adapter those of transformers."""
    folders = [base, adapter] if adapter else [base]
    model = _read(tuple(folders), tuple(map(stamp_of, folders)), ignore_eos)
    ids = torch.tensor([list(prompt)])
    with torch.no_grad(), _peft_finds_positions_itself():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, **sampling
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens
