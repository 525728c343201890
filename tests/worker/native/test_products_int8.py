"""Products of rows with weights of 8 bits: what the plain formula says, in every variant, whatever the batch."""

import platform

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dormouse_worker.model.quantized.blocks import block_size_of
from dormouse_worker.model.quantized.rotation import mix
from dormouse_worker.native import abi

TYPES = {torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16}
any_example = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def multiply(kernels, rows, weight, scales, bias=None):
    out = torch.full((len(rows), len(weight)), float("nan"))
    linear = abi.Linear(weight.data_ptr(), None if bias is None else bias.data_ptr(), abi.INT8, scales.data_ptr())
    dtype = abi.FLOAT32 if bias is None else TYPES[bias.dtype]
    sizes = {"num_rows": len(rows), "columns": weight.shape[1], "num_outputs": len(weight)}
    kernels.multiply(dtype, rows.data_ptr(), linear, out.data_ptr(), **sizes)
    return out


def expected_of(kernels, rows, weight, scales, bias=None):
    """Return the product in float64, of mixed rows, rounded to a scale of each: once, if a processor adds so."""
    mixed = mix(rows)
    peaks = mixed.abs().amax(1, keepdim=True)
    row_scales = peaks / 127 / block_size_of(rows.shape[1]) ** 0.5
    inverse = torch.where(peaks > 0, torch.full_like(peaks, 127) / peaks, 0.0)  # 127 / peaks is rounded twice
    rounds_twice = kernels.name == "portable" and platform.machine() == "x86_64"
    numbers = (mixed * inverse if rounds_twice else mixed.double() * inverse.double()).double().round()
    product = numbers.double() @ (weight.double() - 128).T
    return product * row_scales.double() * scales.double() + (0 if bias is None else bias.double())


def make(num_rows, columns, num_outputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, columns, generator=generator)
    weight = torch.randint(1, 256, (num_outputs, columns), generator=generator, dtype=torch.uint8)
    scales = torch.rand(num_outputs, generator=generator) * 0.01
    bias = torch.randn(num_outputs, generator=generator)
    return rows, weight, scales, bias


@any_example
@given(
    num_rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    num_outputs=st.integers(1, 70),
    bias_dtype=st.sampled_from((None, *TYPES)),
    seed=st.integers(0, 99),
)
@example(num_rows=3, columns=99, num_outputs=1, bias_dtype=None, seed=62)  # a number beside a half
def test_every_size_is_multiplied(kernels, num_rows, columns, num_outputs, bias_dtype, seed):
    rows, weight, scales, bias = make(num_rows, columns, num_outputs, seed)
    bias = None if bias_dtype is None else bias.to(bias_dtype)
    actual = multiply(kernels, rows, weight, scales, bias)
    torch.testing.assert_close(actual.double(), expected_of(kernels, rows, weight, scales, bias), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("num_rows", "columns"), [(1, 4900), (13, 8300), (200, 2500), (450, 64)])
def test_sizes_beyond_one_block_are_multiplied(kernels, num_rows, columns):
    rows, weight, scales, bias = make(num_rows, columns, 50)
    actual = multiply(kernels, rows, weight, scales, bias)
    torch.testing.assert_close(actual.double(), expected_of(kernels, rows, weight, scales, bias), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize(("columns", "num_outputs"), [(4300, 37), (64, 300)])
def test_a_row_has_the_same_bits_in_every_batch(kernels, columns, num_outputs):
    rows, weight, scales, bias = make(300, columns, num_outputs)
    many = multiply(kernels, rows, weight, scales, bias)
    for some in (slice(0, 1), slice(2, 9), slice(11, 12), slice(100, 150), slice(299, 300)):
        assert torch.equal(multiply(kernels, rows[some].clone(), weight, scales, bias), many[some])


def test_the_largest_sums_that_can_be_are_exact(kernels):
    """Of 65,536 columns, the most that are taken: no sum overflows. A rotation makes ones of these rows."""
    rows, scales = torch.zeros(7, 65536), torch.ones(3)
    rows[:, ::64] = 8
    weight = torch.full((3, 65536), 255, dtype=torch.uint8)
    weight[1] = 1
    rows[3] *= -1
    product = 127.0 * 127 * 65536 / 127
    expected = torch.tensor([product, -product, product]).repeat(7, 1)
    expected[3] = -expected[3]
    torch.testing.assert_close(multiply(kernels, rows, weight, scales), expected, rtol=1e-6, atol=0)


def test_rows_of_nothing_give_the_bias(kernels):
    rows, weight, scales, bias = make(3, 40, 5)
    rows[:] = 0
    assert torch.equal(multiply(kernels, rows, weight, scales, bias), bias.expand(3, -1))


@pytest.mark.parametrize("column", [7, 39])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(kernels, odd, column):
    rows, weight, scales, _ = make(3, 40, 5)
    rows[1, column] = odd
    assert multiply(kernels, rows, weight, scales).isfinite().all(1).tolist() == [True, False, True]
