"""Numbers are finite or not, whatever they are looked at with."""

import pytest
import torch

from dormouse_worker.model import finite as module
from dormouse_worker.model.finite import are_finite
from dormouse_worker.native.library import Missing

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ODD = [float("nan"), float("inf"), float("-inf")]


@pytest.fixture(params=["kernels", "numpy"], autouse=True)
def means(request, monkeypatch):
    """What they are looked at with."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "load_kernels", lambda: Missing("none were compiled"))
    elif isinstance(module.load_kernels(), Missing):
        pytest.skip("the kernels are not built")


def of(numbers):
    return are_finite(numbers.view(torch.uint8), numbers.dtype)


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 7, 4096, 4097, 12345])
def test_one_odd_number_is_found_wherever_it_stands(dtype, value, count):
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert of(numbers)
    for place in {0, count // 2, count - 1}:
        odd = numbers.clone()
        odd[place] = value
        assert not of(odd)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_and_the_least_numbers_are_finite(dtype):
    limits = torch.finfo(dtype)
    smallest = torch.tensor([1], dtype=getattr(torch, f"int{limits.bits}")).view(dtype)
    assert of(torch.cat([torch.tensor([limits.max, limits.min, limits.tiny, 0.0, -0.0], dtype=dtype), smallest]))
    assert of(torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn])
def test_whole_numbers_and_those_of_8_bits_are_not_looked_at(dtype):
    assert are_finite(torch.full((64,), 0xFF, dtype=torch.uint8), dtype)
