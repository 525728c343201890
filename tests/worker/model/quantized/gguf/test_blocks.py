"""Blocks of GGUF's types: bit by bit what gguf-py makes of the same bytes."""

import gguf
import numpy as np
import pytest
import torch

from dormouse_worker.files.gguf.types import BLOCKS, NAMES, row_bytes
from dormouse_worker.model.quantized.gguf_blocks import grouped_rows, plain_rows
from dormouse_worker.model.quantized.gguf_plan import KEEPS
from dormouse_worker.model.quantized.grouped import expand, pack
from tests.worker.files.gguf.kit import six_bits

FLOATS = {"F32": np.float32, "F16": np.float16}


def random_rows(kind, columns, num_rows=50):
    return np.random.default_rng(7).integers(0, 256, (num_rows, row_bytes(kind, columns)), dtype=np.uint8)


@pytest.mark.parametrize("kind", BLOCKS)
def test_numbers_have_the_bits_that_the_formats_library_gives(kind):
    raw = random_rows(kind, 512)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw.view(FLOATS.get(kind, np.uint8)), gguf.GGMLQuantizationType[kind])
    expected = expected.astype(np.float32)
    made = plain_rows(kind, torch.from_numpy(raw)).numpy()
    is_number = ~np.isnan(expected)
    assert is_number.mean() > 0.8
    np.testing.assert_array_equal(np.isnan(made), ~is_number)
    np.testing.assert_array_equal(made.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])


def test_names_and_sizes_are_those_of_the_formats_library():
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType} == dict(NAMES)
    assert {kind: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] for kind in BLOCKS} == dict(BLOCKS)


@pytest.mark.parametrize("kind", KEEPS)
def test_numbers_stay_and_stand_for_the_same_weights(kind):
    raw = torch.from_numpy(random_rows(kind, 512))
    rows, chunks = grouped_rows(kind, raw), KEEPS[kind]
    plain = plain_rows(kind, raw)
    assert plain.isfinite().float().mean() > 0.8
    for made in (rows.plain(), expand(pack(rows, chunks), 512, chunks)):
        assert torch.equal(made.nan_to_num(), plain.nan_to_num())


def test_the_kits_six_bits_are_near_what_they_were_made_of():
    rows = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    made = gguf.dequantize(six_bits(rows), gguf.GGMLQuantizationType.Q6_K)
    assert np.abs(made - rows).max() < 0.08
