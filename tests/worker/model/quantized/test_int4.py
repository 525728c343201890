"""The formula of weights of 4 bits: each group has the size that errs least, each row goes for itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized import rounding
from dormouse_worker.model.quantized.blocks import GROUP
from dormouse_worker.model.quantized.formats import INT4
from dormouse_worker.model.quantized.int4 import LEVELS, expand, quantize_in_torch
from dormouse_worker.model.quantized.rotation import rotate
from dormouse_worker.native.library import Missing
from tests.worker.model.quantized import rounded
from tests.worker.model.quantized.test_int8 import DTYPES, make


def quantize_rows(rows):
    return rounded.quantize_rows(rows, rounding.INT4)


def error_of(plain, chunks, scales):
    """Return the sum of squares of what is left, for each group."""
    rest = expand(chunks, scales, plain.shape[1]) - rotate(plain)
    return rest.square().unflatten(1, (-1, GROUP)).sum(-1)


def test_the_error_is_that_of_the_best_levels_for_a_normal_distribution():
    plain = make(64, 896)
    share = error_of(plain, *quantize_rows(plain)).sum() / rotate(plain).square().sum()
    assert share < 0.0075, "0.0095 is that of levels which do not follow their groups, 0.0118 that of equal steps"


def test_no_other_size_of_a_group_errs_much_less():
    plain = make(3, 128)
    chunks, scales = quantize_rows(plain)
    least = error_of(plain, chunks, scales)
    units = rotate(plain) / scales[:, None]
    for size in range(1, 128):
        levels = torch.cat((LEVELS[size], -LEVELS[size])).float()
        nearest = (units[..., None] - levels).abs().amin(-1) * scales[:, None]
        of_size = nearest.square().unflatten(1, (-1, GROUP)).sum(-1)
        assert bool((of_size > least * 0.9).all()), "sizes between those that are tried may err a little less"


def test_a_group_may_be_much_smaller_than_its_neighbour():
    plain = make(4, 128)
    plain[:, 64:] /= 10
    error = error_of(plain, *quantize_rows(plain)) / rotate(plain).square().unflatten(1, (-1, 64)).sum(-1)
    assert bool((error[:, 0] < 0.02).all())
    assert bool((error[:, 1] < 0.03).all())


def test_a_row_of_zeros_stays_one():
    assert torch.equal(INT4.dequantize(*quantize_rows(torch.zeros(2, 5)), 5), torch.zeros(2, 5))


def test_a_row_goes_by_itself_alone():
    plain = make(6, 200)
    together = quantize_rows(plain)
    alone = [quantize_rows(plain[row : row + 1]) for row in range(6)]
    for i in range(2):
        assert torch.equal(together[i], torch.cat([parts[i] for parts in alone]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_kernels_torch_finds_the_same(monkeypatch, dtype):
    plain = make(5, 300, dtype)
    expected = quantize_rows(plain)
    monkeypatch.setattr(rounding, "load_kernels", lambda: Missing("there is no compiler"))
    found = quantize_rows(plain)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(quantize_in_torch(plain), expected, strict=True))


@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 99))
def test_a_product_is_that_of_the_plain_weight(rows, columns, seed):
    weight, scales = quantize_rows(make(7, columns, seed=seed))
    inputs, bias = make(rows, columns, seed=seed + 1), torch.arange(7.0)
    expected = inputs @ INT4.dequantize(weight, scales, columns).T + bias
    torch.testing.assert_close(INT4.multiply(inputs, weight, scales, bias), expected, atol=1e-4, rtol=1e-4)
