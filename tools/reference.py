"""What transformers itself would say: the reference that demo and tests compare every token with."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=4)
def _load(model_dir: Path) -> tuple[Any, Any]:
    """Return (model in float32, tokenizer) of a Hugging Face directory."""
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # warns of how torchao, which is not used, enrols
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.requires_grad_(requires_grad=False)
    return model, AutoTokenizer.from_pretrained(model_dir)


def greedy_tokens(model_dir: Path, prompt_token_ids: list[int], max_tokens: int) -> list[int]:
    """Return the tokens of transformers' greedy `generate` in float32, an end-of-sequence token included."""
    import torch

    model, _ = _load(model_dir)
    prompt = torch.tensor([prompt_token_ids])
    with torch.no_grad():
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, do_sample=False, use_cache=True
        )
    tokens: list[int] = output[0, len(prompt_token_ids) :].tolist()
    return tokens


def chat_token_ids(model_dir: Path, messages: list[dict[str, str]]) -> list[int]:
    """Return the tokens of transformers' own chat template."""
    _, tokenizer = _load(model_dir)
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    return ids
