"""The benchmarks' models."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.models import SHAPES, model_dir, spread_weights


def test_each_shape_and_dtype_has_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path))
    folders = {model_dir(name, dtype) for name in SHAPES for dtype in ("fp32", "bf16")}
    assert len(folders) == 2 * len(SHAPES)
    assert {folder.parent for folder in folders} == {tmp_path / "models"}


def test_spread_weights_decide_and_are_the_same_for_the_same_seed():
    first, second = _logits(), _logits()
    assert torch.equal(first, second)
    assert first.std().item() == pytest.approx(1, rel=0.2)
    best = first.topk(2, dim=-1).values
    assert (best[:, 0] - best[:, 1]).median() > 0.01


def _logits():
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=128, vocab_size=512)).eval()
    spread_weights(model)
    with torch.no_grad():
        return model(torch.arange(3, 67)[None]).logits[0]
