"""What encoders compute between products, against torch in float64, in every variant."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

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


@pytest.mark.parametrize("count", [1, 15, 16, 100_003])
def test_gelu_is_the_one_with_the_error_function(kernels, count):
    numbers = torch.linspace(-12, 12, count) if count > 1 else torch.tensor([-0.75])
    expected = gelu(numbers.double())
    kernels.gate(numbers.data_ptr(), count)
    torch.testing.assert_close(numbers.double(), expected, atol=5e-7, rtol=5e-7)


def test_what_is_no_number_stays_so(kernels):
    numbers = torch.full((40,), 1.0)
    numbers[[3, 39]] = torch.tensor([float("nan"), float("inf")])
    kernels.gate(numbers.data_ptr(), 40)
    assert not torch.isfinite(numbers[[3, 39]]).any()
    assert torch.isfinite(numbers).sum() == 38
