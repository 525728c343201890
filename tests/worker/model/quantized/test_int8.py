"""The formula of weights of 8 bits: errors of half a step at most, each row for itself, on any device alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized.formats import INT8
from dormouse_worker.model.quantized.int8 import expand
from dormouse_worker.model.quantized.rotation import rotate
from tests.worker.model.quantized.rounded import quantize_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(rows, columns, dtype=torch.float32, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from(DTYPES), st.integers(0, 99))
def test_no_weight_is_off_by_more_than_half_a_step(rows, columns, dtype, seed):
    plain = make(rows, columns, dtype, seed)
    numbers, scales = quantize_rows(plain)
    assert (numbers.dtype, scales.dtype) == (torch.uint8, torch.float32)
    error = (expand(numbers, scales) - rotate(plain)).abs()
    assert bool((error <= scales[:, None] * 0.5001).all())


def test_the_largest_of_a_row_is_127_on_either_side():
    numbers, scales = quantize_rows(torch.tensor([[1.0, -4.0, 4.0], [0.5, -0.25, 0.0]]))
    assert numbers.tolist() == [[160, 1, 255], [255, 64, 128]]
    assert scales.tolist() == pytest.approx([4 / 127, 0.5 / 127])


def in_torch(plain):
    """Return what the formula says, operation by operation."""
    turned = rotate(plain)
    scales = turned.abs().amax(1) / 127
    return (turned * (1 / scales)[:, None]).round().clamp(-127, 127).add(128).to(torch.uint8), scales


@pytest.mark.parametrize("columns", [1, 3, 10, 64, 96, 896])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_finds_the_same_bits(columns, dtype):
    plain = make(33, columns, dtype)
    assert all(map(torch.equal, quantize_rows(plain), in_torch(plain)))


def test_a_row_of_next_to_nothing_becomes_zeros():
    assert set(quantize_rows(torch.full((1, 4), 1e-41))[0].flatten().tolist()) == {128}


def test_a_row_of_zeros_stays_one():
    numbers, scales = quantize_rows(torch.zeros(2, 5))
    assert torch.equal(INT8.dequantize(numbers, scales, 5), torch.zeros(2, 5))


def test_a_row_goes_by_itself_alone():
    plain = make(6, 40)
    together = quantize_rows(plain)
    alone = [quantize_rows(plain[row : row + 1]) for row in range(6)]
    for i in range(2):
        assert torch.equal(together[i], torch.cat([parts[i] for parts in alone]))


@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 99))
def test_a_product_is_that_of_the_plain_weight(rows, columns, seed):
    weight, scales = quantize_rows(make(7, columns, seed=seed))
    inputs, bias = make(rows, columns, seed=seed + 1), torch.arange(7.0)
    expected = inputs @ INT8.dequantize(weight, scales, columns).T + bias
    torch.testing.assert_close(INT8.multiply(inputs, weight, scales, bias), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_has_the_type_of_its_rows(dtype):
    weight, scales = quantize_rows(make(3, 8))
    assert INT8.multiply(make(2, 8, dtype), weight, scales, None).dtype == dtype
