"""A model that has grown says what it said."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.draft_pair import Shape, grow, grown_config


def test_a_grown_model_says_the_same():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    shape = Shape(hidden=72, num_layers=5, num_heads=6, mlp=90)
    larger = LlamaForCausalLM(LlamaConfig(**grown_config(config.to_dict(), shape))).eval()
    grown = grow(model.state_dict(), config.to_dict(), shape)
    assert not larger.load_state_dict(grown, strict=False).unexpected_keys
    tokens = torch.arange(20)[None] % 50
    with torch.no_grad():
        torch.testing.assert_close(larger(tokens).logits, model(tokens).logits, atol=1e-4, rtol=1e-4)
    assert sum(p.numel() for p in larger.parameters()) > 4 * sum(p.numel() for p in model.parameters())
