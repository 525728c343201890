"""Rows of 8 bits, number by number: what is written has the reference's bytes, what is read is what they stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.cache_rows import MOST, plain_values, round_keys, round_values
from tests.gpu.attention_world import Case, World

CPU = torch.device("cpu")
ALONE = Case("alone", heads=(1, 1), sizes=(16, 256), spans=((0, 1),))  # a token that sees itself alone: its value
NOT_ITS = {"int8": {-128}, "fp8": {127, -1}}  # codes that no number is rounded to
SCALES = (1.0, 3.0, 2.0**-20, 2.0**100)


def codes_of(stored):
    """Return all codes, and zeros in the place of those that are none."""
    codes = [code if code not in NOT_ITS[stored] else 0 for code in range(-128, 128)]
    return torch.tensor(codes, dtype=torch.int8)


def row_of(stored, scale):
    return torch.cat([codes_of(stored), torch.tensor([scale]).bfloat16().view(torch.int8)])


@pytest.mark.parametrize("size", [256, 255, 9])  # whole vectors, and what is left of one
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", MOST)
def test_each_number_is_read_as_what_it_stands_for(kernels, stored, dtype, size):
    world = World(replace(ALONE, stored=stored, dtype=dtype, sizes=(16, size)), CPU)
    plan = NativeBackend(kernels=kernels).plan(world.metadata, CPU)
    plan.write(world.layer, world.key, world.value)
    for scale in SCALES:
        whole = row_of(stored, scale)
        row = torch.cat([whole[-size - 2 : -2], whole[-2:]])
        world.layer.value[world.metadata.slot_mapping[0], 0] = row
        found = plan.attend(world.call, world.query, world.layer)
        expected = plain_values(row, stored, dtype)
        torch.testing.assert_close(found[0, 0], expected, atol=0, rtol=1e-6 if dtype == torch.float32 else 0)


def numbers_of(stored):
    """Return rows whose numbers lie on, half-way between and beside neighbours, with all sizes of scales."""
    all_of = plain_values(row_of(stored, 1.0), stored, torch.float32).unique()
    middles = (all_of[1:] + all_of[:-1]) / 2
    near = [torch.nextafter(middles, torch.full_like(middles, to)) for to in (-1e9, 1e9)]
    numbers = torch.cat([all_of, middles, *near])
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 15))
    rows = torch.nn.functional.pad(numbers.view(-1, 15), (1, 0), value=MOST[stored])  # a scale of 1
    tiny = torch.tensor([[0.0] * 16, [1e-31] * 16, [-0.0, 1e-30, *[1e-38] * 14], [1e37] * 16])
    return torch.cat([rows * scale for scale in SCALES] + [tiny])


@pytest.mark.parametrize("stored", MOST)
def test_each_number_is_rounded_to_the_reference_s_bytes(kernels, stored):
    rows = numbers_of(stored)[:, None]
    case = Case("many", heads=(1, 1), stored=stored, spans=((0, len(rows)),))
    world = World(case, CPU)
    NativeBackend(kernels=kernels).plan(world.metadata, CPU).write(world.layer, rows, rows)
    slots = torch.from_numpy(world.metadata.slot_mapping)
    assert torch.equal(world.layer.value[slots], round_values(rows, stored))
    assert torch.equal(world.layer.key[slots], round_keys(rows, stored))


def test_floats_of_8_bits_keep_small_numbers_beside_large_ones():
    row = torch.tensor([100.0] + [0.01] * 63)
    whole, floats = (plain_values(round_values(row, stored), stored, torch.float32) for stored in MOST)
    assert not whole[1:].any()
    torch.testing.assert_close(floats[1:], row[1:], atol=0, rtol=1 / 16)


def test_of_numbers_alike_whole_ones_are_nearer():
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    whole, floats = ((plain_values(round_values(rows, stored), stored, torch.float32) - rows).norm() for stored in MOST)
    assert whole < floats / 2
