"""Weights are quantized in whatever pieces they are read, and read once where the pieces come in order."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.quantized.online import OnlineSource, Replaced
from dormouse_worker.model.quantized.rounding import INT4, INT8
from dormouse_worker.model.weights.layout import Slot
from tests.worker.model.quantized.rounded import quantize_rows

ROWS, COLUMNS = 700, 60
PLAIN = Slot("a.weight", 0, (ROWS, COLUMNS), torch.bfloat16)
SCALES = Slot("a.weight_scale", 0, (ROWS,), torch.float32)
BIAS = Slot("a.bias", 0, (ROWS,), torch.bfloat16)


class PlainSource:
    """Has one weight and a bias, and counts the bytes that are read."""

    path, held_bytes = "fast", 5

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(ROWS, COLUMNS, generator=generator).bfloat16()
        self.bias = torch.randn(ROWS, generator=generator).bfloat16()
        self.num_read = 0

    def origin(self, name):
        return f"file: {name}"

    @contextmanager
    def open(self):
        def read(slot, start, end, target):
            tensor = {"a.weight": self.weight, "a.bias": self.bias}[slot.name]
            assert (slot.shape, slot.dtype) == (tuple(tensor.shape), tensor.dtype)
            target.copy_(tensor.view(-1).view(torch.uint8)[start:end])
            self.num_read += end - start

        yield read


@pytest.fixture
def plain():
    return PlainSource()


def numbers_of(stored_as):
    return Slot("a.weight", 0, (ROWS, stored_as.row_bytes(COLUMNS)), torch.uint8)


@pytest.fixture(params=[INT8, INT4], ids=lambda stored_as: stored_as.name)
def stored_as(request):
    return request.param


@pytest.fixture
def online(plain, stored_as):
    return OnlineSource(plain, {"a.weight": Replaced(PLAIN, stored_as)})


def read_all(source, slots, piece):
    """Return the bytes of the slots, read in pieces."""
    found = []
    with source.open() as read:
        for slot in slots:
            target = torch.zeros(slot.num_bytes, dtype=torch.uint8)
            for start in range(0, slot.num_bytes, piece):
                end = min(start + piece, slot.num_bytes)
                read(slot, start, end, target[start:end])
            found.append(target)
    return found


@given(st.integers(1, ROWS * COLUMNS // 4).map(lambda fours: fours * 4), st.booleans(), st.sampled_from((INT8, INT4)))
def test_every_piece_has_its_part_of_the_numbers_whatever_comes_first(piece, scales_first, stored_as):
    plain = PlainSource()
    online = OnlineSource(plain, {"a.weight": Replaced(PLAIN, stored_as)})
    slots = [SCALES, numbers_of(stored_as)] if scales_first else [numbers_of(stored_as), SCALES]
    found = dict(zip((slot.name for slot in slots), read_all(online, slots, max(piece, 400)), strict=True))
    numbers, scales = quantize_rows(plain.weight, stored_as)
    assert torch.equal(found["a.weight"], numbers.view(-1))
    assert torch.equal(found["a.weight_scale"].view(torch.float32), scales)


def test_what_is_no_weight_is_read_as_it_is(plain, online):
    (bias,) = read_all(online, [BIAS], 4)
    assert torch.equal(bias.view(torch.bfloat16), plain.bias)


def test_a_weight_is_read_once_for_its_numbers_and_scales(plain, online, stored_as):
    numbers = numbers_of(stored_as)
    read_all(online, [numbers, SCALES], numbers.num_bytes)
    assert plain.num_read == plain.weight.nbytes
    read_all(online, [numbers, SCALES], numbers.num_bytes)
    assert plain.num_read == 2 * plain.weight.nbytes


def test_a_scale_comes_from_where_its_weight_does(online):
    assert online.origin("a.weight_scale") == "file: a.weight"
    assert (online.origin("a.bias"), online.held_bytes, online.path) == ("file: a.bias", 5, "fast")
