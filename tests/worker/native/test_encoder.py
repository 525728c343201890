"""What vectors are computed by between products, against torch in float64, in every variant."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from dormouse_worker.native import abi


@pytest.mark.parametrize(("num_rows", "columns"), [(1, 1), (3, 7), (5, 16), (700, 60), (2, 4099)])
@pytest.mark.parametrize("has_more", [False, True])
def test_a_sum_is_normalized_row_by_row_also_in_place(kernels, num_rows, columns, has_more):
    generator = torch.Generator().manual_seed(num_rows)
    rows, more = (torch.randn(num_rows, columns, generator=generator) * 3 + 2 for _ in range(2))
    weight, bias = (torch.randn(columns, generator=generator) for _ in range(2))
    whole = rows.double() + more.double() if has_more else rows.double()
    expected = layer_norm(whole, (columns,), weight.double(), bias.double(), 1e-5)
    norm = abi.LayerNorm(weight.data_ptr(), bias.data_ptr(), 1e-5)
    other = more.data_ptr() if has_more else None
    kernels.normalize(rows.data_ptr(), other, norm, rows.data_ptr(), num_rows=num_rows, columns=columns)
    torch.testing.assert_close(rows.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("num_rows", "columns"), [(3, 7), (5, 16), (700, 60)])
@pytest.mark.parametrize("keeps_mean", [False, True])
def test_a_norm_may_have_no_bias_and_keep_the_mean(kernels, num_rows, columns, keeps_mean):
    generator = torch.Generator().manual_seed(num_rows)
    rows = torch.randn(num_rows, columns, generator=generator) * 3 + 2
    weight = torch.randn(columns, generator=generator)
    by = rms_norm if keeps_mean else lambda x, shape, weight, eps: layer_norm(x, shape, weight, None, eps)
    expected = by(rows.double(), (columns,), weight.double(), 1e-5)
    norm = abi.LayerNorm(weight.data_ptr(), None, 1e-5, keeps_mean)
    kernels.normalize(rows.data_ptr(), None, norm, rows.data_ptr(), num_rows=num_rows, columns=columns)
    torch.testing.assert_close(rows.double(), expected, atol=1e-5, rtol=1e-5)


def halves(*shape, seed=0):
    """Return random numbers of 16 bits."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize(("num_rows", "columns"), [(1, 1), (3, 7), (5, 16), (700, 60), (2, 4099)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_of_16_bits_are_normalized_in_float32_also_in_place(kernels, num_rows, columns, has_bias):
    """What comes out is rounded once."""
    rows, weight, bias = halves(num_rows, columns) * 3 + 2, torch.rand(columns), torch.rand(columns)
    shift = bias if has_bias else None
    expected = layer_norm(rows.double(), (columns,), weight.double(), bias.double() if has_bias else None, 1e-5)
    norm = abi.LayerNorm(weight.data_ptr(), None if shift is None else shift.data_ptr(), 1e-5)
    kernels.normalize_halves(rows.data_ptr(), norm, rows.data_ptr(), num_rows=num_rows, columns=columns)
    torch.testing.assert_close(rows.double(), expected, atol=2**-8, rtol=2**-8)


@pytest.mark.parametrize(
    ("num_rows", "columns", "num_outputs"), [(1, 1, 1), (3, 40, 17), (130, 70, 33), (20, 4100, 16)]
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_of_16_bits_are_multiplied_with_sums_of_float32(kernels, num_rows, columns, num_outputs, has_bias):
    """What comes out is rounded once, and nothing is written beside it."""
    rows, weight, bias = halves(num_rows, columns), halves(num_outputs, columns, seed=1), halves(num_outputs, seed=2)
    expected = rows.double() @ weight.double().T + (bias.double() if has_bias else 0)
    out = torch.full((num_rows * num_outputs + 16,), 7.0).to(torch.bfloat16)
    linear = abi.Linear(weight.data_ptr(), bias.data_ptr() if has_bias else None)
    sizes = {"num_rows": num_rows, "columns": columns, "num_outputs": num_outputs}
    kernels.multiply_halves(rows.data_ptr(), linear, out.data_ptr(), **sizes)
    found = out[:-16].view(num_rows, num_outputs).double()
    torch.testing.assert_close(found, expected, atol=2**-8 * columns**0.5, rtol=2**-8)
    assert (out[-16:] == 7).all()


@pytest.mark.parametrize("count", [1, 15, 16, 100_003])
@pytest.mark.parametrize(
    ("kind", "gate"),
    [(abi.GELU, gelu), (abi.SILU, silu), (abi.GELU_TANH, lambda numbers: gelu(numbers, approximate="tanh"))],
)
def test_numbers_of_16_bits_are_gated_in_float32(kernels, count, kind, gate):
    """What comes out is rounded once."""
    numbers = torch.linspace(-30, 12, count).to(torch.bfloat16)
    expected = gate(numbers.double())
    kernels.gate_halves(kind, numbers.data_ptr(), count=count)
    torch.testing.assert_close(numbers.double(), expected, atol=1e-6, rtol=2**-8)


@pytest.mark.parametrize(("num_rows", "num_heads", "size"), [(1, 1, 2), (7, 3, 10), (300, 4, 64), (5, 2, 256)])
def test_heads_turn_by_their_rows_positions(kernels, num_rows, num_heads, size):
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(num_rows, num_heads, size, generator=generator)
    positions = torch.arange(num_rows).flip(0) * 3
    inv_freq = 1 / 1e4 ** (torch.arange(0, size, 2) / size)
    angles = (positions[:, None].float() * inv_freq).double()[:, None]
    first, second = rows.double().chunk(2, -1)
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    places = (positions.data_ptr(), inv_freq.data_ptr())
    kernels.rotate(rows.data_ptr(), *places, num_rows=num_rows, num_heads=num_heads, size=size)
    torch.testing.assert_close(rows.double(), torch.cat(turned, -1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 15, 16, 100_003])
@pytest.mark.parametrize(("kind", "gate"), [(abi.GELU, gelu), (abi.SILU, silu)])
def test_a_gate_lets_through_of_what_stands_beside_it(kernels, count, kind, gate):
    numbers, others = torch.linspace(-120, 12, count), torch.linspace(3, -4, count)
    expected = gate(numbers.double()) * others.double()
    kernels.gate(kind, numbers.data_ptr(), others.data_ptr(), count=count)
    torch.testing.assert_close(numbers.double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("count", [1, 15, 16, 100_003])
def test_gelu_is_the_one_with_the_error_function(kernels, count):
    numbers = torch.linspace(-12, 12, count) if count > 1 else torch.tensor([-0.75])
    expected = gelu(numbers.double())
    kernels.gate(abi.GELU, numbers.data_ptr(), None, count=count)
    torch.testing.assert_close(numbers.double(), expected, atol=5e-7, rtol=5e-7)


@pytest.mark.parametrize("kind", [abi.GELU, abi.SILU, abi.GELU_TANH])
def test_what_is_no_number_stays_so(kernels, kind):
    numbers = torch.full((40,), 1.0)
    numbers[[3, 39]] = torch.tensor([float("nan"), float("inf")])
    kernels.gate(kind, numbers.data_ptr(), None, count=40)
    assert not torch.isfinite(numbers[[3, 39]]).any()
    assert torch.isfinite(numbers).sum() == 38
