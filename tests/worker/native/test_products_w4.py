"""Products with weights of 4 bits in groups: bit by bit those of the plain weights that they stand for."""

import pytest
import torch

from dormouse_worker.model.quantized.grouped import Grouped, expand, pack
from dormouse_worker.native import abi

TYPES = {torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16}
FORMATS = {1: abi.W4_1, 4: abi.W4_4}


def make(columns, num_outputs, count):
    """Return a map whose chunks have so many groups."""
    generator = torch.Generator().manual_seed(columns)
    groups = columns // 128 * count
    return Grouped(
        torch.randint(0, 16, (num_outputs, columns), generator=generator, dtype=torch.int32),
        torch.randint(0, 16, (num_outputs, groups), generator=generator, dtype=torch.int32),
        torch.rand(num_outputs, groups, generator=generator),
        torch.arange(columns) // (128 // count),
    )


def multiply(kernels, rows, weight, form, dtype):
    out = torch.full((len(rows), len(weight)), float("nan"))
    linear = abi.Linear(weight.data_ptr(), None, form, None)
    sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": len(weight)}
    kernels.multiply(TYPES[dtype], rows.data_ptr(), linear, out.data_ptr(), **sizes)
    return out


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", FORMATS)
@pytest.mark.parametrize(("columns", "num_outputs"), [(128, 5), (896, 37), (4608, 20)])
def test_products_have_the_bits_of_the_plain_weights(kernels, dtype, count, columns, num_outputs):
    stored = make(columns, num_outputs, count)
    weight, plain = pack(stored, count), stored.plain().to(dtype)
    rows = torch.randn(200, columns, generator=torch.Generator().manual_seed(1)).to(dtype).float()
    for some in (1, 2, 5, 16, 33, 200):
        expected = multiply(kernels, rows[:some], plain, abi.PLAIN, dtype)
        assert torch.equal(multiply(kernels, rows[:some], weight, FORMATS[count], dtype), expected), some


@pytest.mark.parametrize("count", FORMATS)
def test_what_is_packed_is_what_is_expanded(count):
    stored = make(384, 9, count)
    assert torch.equal(expand(pack(stored, count), 384, count), stored.plain())
