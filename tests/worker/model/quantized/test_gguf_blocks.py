"""Blocks of GGUF's types: bit by bit what gguf-py makes of the same bytes."""

import gguf
import numpy as np
import pytest
import torch

from dormouse_worker.files.gguf.types import BLOCKS, NAMES, row_bytes
from dormouse_worker.model.quantized.gguf_blocks import grouped_rows, plain_rows
from dormouse_worker.model.quantized.grouped import expand, groups_in_chunk, pack

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


def test_four_bits_stay_and_stand_for_the_same_weights():
    with np.errstate(all="ignore"):
        raw = gguf.quantize(
            np.random.default_rng(3).standard_normal((6, 256), np.float32), gguf.GGMLQuantizationType.Q4_0
        )
    rows = torch.from_numpy(raw)
    count = groups_in_chunk(32, 256)
    assert count is not None
    assert torch.equal(expand(pack(grouped_rows(rows), count), 256, count), plain_rows("Q4_0", rows))
