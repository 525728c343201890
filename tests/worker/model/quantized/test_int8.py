"""The formula of weights of 8 bits: errors of half a step at most, each row for itself, on any device alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized.int8 import dequantize, quantize_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(rows, columns, dtype=torch.float32, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from(DTYPES), st.integers(0, 99))
def test_no_weight_is_off_by_more_than_half_a_step(rows, columns, dtype, seed):
    plain = make(rows, columns, dtype, seed)
    numbers, scales = quantize_rows(plain)
    assert (numbers.dtype, scales.dtype) == (torch.uint8, torch.float32)
    error = (dequantize(numbers, scales, torch.float32) - plain.float()).abs()
    assert bool((error <= scales[:, None] * 0.5001).all())


def test_the_largest_of_a_row_is_127_on_either_side():
    numbers, scales = quantize_rows(torch.tensor([[1.0, -4.0, 4.0], [0.5, -0.25, 0.0]]))
    assert numbers.tolist() == [[160, 1, 255], [255, 64, 128]]
    assert scales.tolist() == pytest.approx([4 / 127, 0.5 / 127])


def test_a_row_of_zeros_stays_one():
    numbers, scales = quantize_rows(torch.zeros(2, 5))
    assert torch.equal(dequantize(numbers, scales, torch.float32), torch.zeros(2, 5))


def test_a_row_goes_by_itself_alone():
    plain = make(6, 40)
    together = quantize_rows(plain)
    alone = [quantize_rows(plain[row : row + 1]) for row in range(6)]
    for i in range(2):
        assert torch.equal(together[i], torch.cat([parts[i] for parts in alone]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_weights_have_the_type_that_is_asked_for(dtype):
    numbers, scales = quantize_rows(make(3, 8))
    assert dequantize(numbers, scales, dtype).dtype == dtype
