"""A rotation keeps lengths and products, undoes itself, and spreads what stands out over its block."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized.blocks import BLOCK, block_size_of
from dormouse_worker.model.quantized.rotation import mix, rotate


def make(columns, seed=0):
    return torch.randn(4, columns, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 400), st.integers(0, 99))
def test_a_rotation_undoes_itself_and_keeps_products(columns, seed):
    rows, others = make(columns, seed), make(columns, seed + 1)
    torch.testing.assert_close(rotate(rotate(rows)), rows)
    torch.testing.assert_close(rotate(rows) @ rotate(others).T, rows @ others.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("columns", "size"), [(1, 1), (50, 2), (36, 4), (96, 32), (576, 64), (4096, BLOCK)])
def test_a_block_divides_the_row(columns, size):
    assert block_size_of(columns) == size


def test_a_number_that_stands_out_is_spread_over_its_block_alone():
    rows = torch.zeros(1, 192)
    rows[0, 70] = 8.0
    turned = rotate(rows)
    assert turned[0, 64:128].abs().tolist() == [1.0] * 64
    assert turned.count_nonzero() == 64


def test_the_input_stays_as_it_is():
    for columns in (5, 64):
        rows = make(columns)
        before = rows.clone()
        rotate(rows).zero_()
        mix(rows)
        assert torch.equal(rows, before)
