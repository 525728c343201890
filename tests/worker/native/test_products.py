"""Products of rows with weights against float64, for any sizes, in every variant."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_worker.native import abi

TYPES = {torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16}
any_example = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def multiply(kernels, rows, weight, bias=None):
    out = torch.full((len(rows), len(weight)), float("nan"))
    linear = abi.Linear(weight.data_ptr(), None if bias is None else bias.data_ptr())
    sizes = {"num_rows": len(rows), "columns": weight.shape[1], "num_outputs": len(weight)}
    kernels.multiply(TYPES[weight.dtype], rows.data_ptr(), linear, out.data_ptr(), **sizes)
    return out


def make(num_rows, columns, num_outputs, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, columns, generator=generator)
    weight = torch.randn(num_outputs, columns, generator=generator) * columns**-0.5
    bias = torch.randn(num_outputs, generator=generator)
    return rows.to(dtype).float(), weight.to(dtype), bias.to(dtype)


@any_example
@given(
    num_rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    num_outputs=st.integers(1, 70),
    dtype=st.sampled_from(tuple(TYPES)),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_size_is_multiplied(kernels, num_rows, columns, num_outputs, dtype, has_bias, seed):
    rows, weight, bias = make(num_rows, columns, num_outputs, dtype, seed)
    expected = rows.double() @ weight.double().T + (bias.double() if has_bias else 0)
    actual = multiply(kernels, rows, weight, bias if has_bias else None)
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "columns"), [(1, 4900), (13, 4864), (200, 2500), (450, 64)])
def test_sizes_beyond_one_block_are_multiplied(kernels, num_rows, columns, dtype):
    rows, weight, bias = make(num_rows, columns, 50, dtype)
    expected = rows.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(multiply(kernels, rows, weight, bias).double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("columns", "num_outputs"), [(2200, 37), (64, 300)])
def test_a_row_has_the_same_bits_in_every_batch(kernels, columns, num_outputs, dtype):
    """But where a processor multiplies many rows in another type than few."""
    rows, weight, _ = make(300, columns, num_outputs, dtype)
    together = multiply(kernels, rows[:12], weight)
    for some in (slice(0, 1), slice(2, 9), slice(11, 12)):
        assert torch.equal(multiply(kernels, rows[some], weight), together[some])
    many = multiply(kernels, rows, weight)
    assert torch.equal(multiply(kernels, rows[100:150], weight), many[100:150])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [45, 2200])
def test_a_row_among_many_has_the_bits_of_one_alone(kernels, columns, dtype):
    """Where many rows are computed another way than few; a processor may multiply them in another type (see above)."""
    if dtype == torch.bfloat16 and kernels.name == "avx512bf16":
        dtype = torch.float32
    rows, weight, bias = make(77, columns, 37, dtype)
    many = multiply(kernels, rows, weight, bias)
    for row in range(77):
        assert torch.equal(multiply(kernels, rows[row : row + 1], weight, bias), many[row : row + 1])


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(kernels, num_threads):
    rows, weight, bias = make(20, 700, 900, torch.bfloat16)
    expected = multiply(kernels, rows, weight, bias)
    kernels.set_num_threads(num_threads)
    assert kernels.num_threads == num_threads
    for _ in range(20):
        assert torch.equal(multiply(kernels, rows, weight, bias), expected)


def test_what_is_not_a_number_stays_so(kernels):
    rows, weight, _ = make(3, 40, 5, torch.bfloat16)
    rows[1, 7] = float("nan")
    assert multiply(kernels, rows, weight).isnan().any(1).tolist() == [False, True, False]
