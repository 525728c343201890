"""Products with weights of 4 and 8 bits in groups: bit by bit those of the plain weights that they stand for."""

import pytest
import torch

from dormouse_worker.model.quantized import mxfp4
from dormouse_worker.model.quantized.grouped import Chunks, Grouped, expand, pack
from dormouse_worker.native import abi
from tests.worker.model.quantized.packed_experts import draw

TYPES = {torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16}
FORMATS = {
    Chunks.OF_ONE: abi.W4_1,
    Chunks.OF_FOUR: abi.W4_4,
    Chunks.WITH_LOWS: abi.W4_LOW,
    Chunks.BYTES_OF_FOUR: abi.W8_4,
    Chunks.BYTES_OF_EIGHT: abi.W8_8,
    Chunks.BYTES_WITH_LOWS: abi.W8_LOW,
}


def make(columns, num_outputs, chunks):
    """Return a map whose chunks lie so."""
    generator = torch.Generator().manual_seed(columns)
    has_lows, groups = chunks.has_lows, columns // 128 * chunks.num_groups
    zeros = torch.randint(0, 16, (num_outputs, groups), generator=generator, dtype=torch.int32)
    least, end = (-128, 128) if chunks.is_of_bytes else (0, 16)
    return Grouped(
        torch.randint(least, end, (num_outputs, columns), generator=generator, dtype=torch.int32),
        None if has_lows or chunks.is_of_bytes else zeros,
        torch.rand(num_outputs, groups, generator=generator),
        torch.arange(columns) // (128 // chunks.num_groups),
        torch.randn(num_outputs, groups, generator=generator) if has_lows else None,
    )


def multiply(kernels, rows, weight, form, dtype):
    out = torch.full((len(rows), len(weight)), float("nan"))
    linear = abi.Linear(weight.data_ptr(), None, form, None)
    sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": len(weight)}
    kernels.multiply(TYPES[dtype], rows.data_ptr(), linear, out.data_ptr(), **sizes)
    return out


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("chunks", FORMATS)
@pytest.mark.parametrize(("columns", "num_outputs"), [(128, 5), (896, 37), (4608, 20)])
def test_products_have_the_bits_of_the_plain_weights(kernels, dtype, chunks, columns, num_outputs):
    stored = make(columns, num_outputs, chunks)
    weight, plain = pack(stored, chunks), stored.plain()
    rows = torch.randn(200, columns, generator=torch.Generator().manual_seed(1)).to(dtype).float()
    types = (
        {dtype, torch.float32} if chunks.is_of_bytes and not chunks.has_lows else {dtype}
    )  # bytes times scales are exact but where bfloat16 is multiplied
    for some in (1, 2, 5, 16, 33, 200):
        made = multiply(kernels, rows[:some], weight, FORMATS[chunks], dtype)
        expected = (multiply(kernels, rows[:some], plain.to(one), abi.PLAIN, one) for one in types)
        assert any(torch.equal(made, one) for one in expected), some


@pytest.mark.parametrize("chunks", FORMATS)
def test_what_is_packed_is_what_is_expanded(chunks):
    stored = make(384, 9, chunks)
    assert torch.equal(expand(pack(stored, chunks), 384, chunks), stored.plain())


@pytest.mark.parametrize(("columns", "num_outputs"), [(32, 5), (96, 37), (2880, 20)])
def test_products_with_mxfp4_have_the_bits_of_the_plain_weights(kernels, columns, num_outputs):
    blocks, scales = draw(1, num_outputs, columns, least=0, most=200)
    weight = torch.from_numpy(mxfp4.pack(blocks.view(-1, 16).numpy(), scales.flatten().numpy())).view(num_outputs, -1)
    plain = mxfp4.expand(weight, torch.float32)
    rows = torch.randn(200, columns, generator=torch.Generator().manual_seed(1))
    for some in (1, 2, 5, 16, 33, 200):
        expected = multiply(kernels, rows[:some], plain, abi.PLAIN, torch.float32)
        for dtype in TYPES:
            assert torch.equal(multiply(kernels, rows[:some], weight, abi.MXFP4, dtype), expected), some
