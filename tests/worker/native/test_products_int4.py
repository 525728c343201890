"""Products of rows with weights of 4 bits: those of the numbers that they stand for, in every variant and batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized.blocks import ZERO
from dormouse_worker.model.quantized.int4 import expand, quantize_in_torch
from dormouse_worker.model.quantized.rounding import row_bytes_of_int4 as row_bytes
from dormouse_worker.native import abi
from tests.worker.native.test_products_int8 import any_example, expected_of


def multiply(kernels, rows, weight, scales):
    out = torch.full((len(rows), len(weight)), float("nan"))
    linear = abi.Linear(weight.data_ptr(), None, abi.INT4, scales.data_ptr())
    sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": len(weight)}
    kernels.multiply(abi.FLOAT32, rows.data_ptr(), linear, out.data_ptr(), **sizes)
    return out


def make(num_rows, columns, num_outputs, seed=0):
    """Return rows, and weights of any bytes that a chunk may have."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, columns, generator=generator)
    weight = torch.randint(0, 128, (num_outputs, row_bytes(columns)), generator=generator, dtype=torch.uint8)
    return rows, weight, torch.rand(num_outputs, generator=generator) * 0.01


def numbers_of(weight, columns):
    return expand(weight, torch.ones(len(weight)), columns) + ZERO


@any_example
@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 70), st.integers(0, 99))
def test_every_size_is_multiplied(kernels, num_rows, columns, num_outputs, seed):
    rows, weight, scales = make(num_rows, columns, num_outputs, seed)
    expected = expected_of(kernels, rows, numbers_of(weight, columns), scales)
    torch.testing.assert_close(multiply(kernels, rows, weight, scales).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("num_rows", "columns"), [(1, 4900), (13, 8300), (200, 2500), (450, 64)])
def test_sizes_beyond_one_block_are_multiplied(kernels, num_rows, columns):
    rows, weight, scales = make(num_rows, columns, 50)
    expected = expected_of(kernels, rows, numbers_of(weight, columns), scales)
    torch.testing.assert_close(multiply(kernels, rows, weight, scales).double(), expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(("columns", "num_outputs"), [(4300, 37), (64, 300)])
def test_a_row_has_the_same_bits_in_every_batch(kernels, columns, num_outputs):
    rows, weight, scales = make(300, columns, num_outputs)
    many = multiply(kernels, rows, weight, scales)
    for some in (slice(0, 1), slice(2, 9), slice(11, 12), slice(100, 150), slice(299, 300)):
        assert torch.equal(multiply(kernels, rows[some].clone(), weight, scales), many[some])


@pytest.mark.parametrize("column", [7, 39])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(kernels, odd, column):
    rows, weight, scales = make(3, 40, 5)
    rows[1, column] = odd
    assert multiply(kernels, rows, weight, scales).isfinite().all(1).tolist() == [True, False, True]


@any_example
@given(st.integers(1, 5), st.integers(1, 300), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_weights_are_rounded_as_torch_does(kernels, num_rows, columns, factor, seed):
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(num_rows, columns, generator=generator) * factor
    plain[:, columns // 2 :] *= torch.rand(1, generator=generator)
    plain[-1] *= seed % 2  # a row of nothing too
    chunks, scales = torch.empty(num_rows, row_bytes(columns), dtype=torch.uint8), torch.empty(num_rows)
    addresses = plain.data_ptr(), chunks.data_ptr(), scales.data_ptr()
    kernels.round_rows(*addresses, num_rows=num_rows, columns=columns)
    expected = quantize_in_torch(plain)
    assert torch.equal(chunks, expected[0])
    assert torch.equal(scales, expected[1])
