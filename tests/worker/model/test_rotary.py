"""What a rotary embedding turns by is what transformers says, but for a last bit of torch's powers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dormouse_worker.model import rotary
from dormouse_worker.model.rotary import default_frequencies, frequencies

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SIZES = (8, 64, 128)


def of_torch(theta, size):
    return (1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))).numpy()


def of_transformers(rope, size):
    config = LlamaConfig(hidden_size=size, num_attention_heads=1, rope_parameters=rope, max_position_embeddings=131072)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")[0].numpy()


@pytest.mark.parametrize("size", SIZES)
def test_plain_ones_differ_from_torch_s_by_a_last_bit_at_most(size):
    for theta in (10000.0, 500000.0, 1e6):
        theirs, ours = of_torch(theta, size), default_frequencies(theta, size)
        assert (np.abs(ours.view(np.int32) - theirs.view(np.int32)) <= 1).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.5},
        LLAMA3 | {"original_max_position_embeddings": 8192},
        LLAMA3 | {"original_max_position_embeddings": 64, "factor": 32.0, "high_freq_factor": 3.0},
    ],
)
def test_scaled_ones_are_transformers_bit_for_bit_where_the_plain_ones_are(monkeypatch, rope, size):
    monkeypatch.setattr(rotary, "default_frequencies", of_torch)
    for theta in (10000.0, 500000.0):
        theirs = of_transformers({**rope, "rope_theta": theta}, size)
        assert np.array_equal(frequencies({**rope, "rope_theta": theta}, size), theirs)
