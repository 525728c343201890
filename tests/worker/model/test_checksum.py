"""The checksum: one value on every device, any change and any move changes it, parts add up."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model import checksum as module
from dormouse_worker.model.checksum import BLOCK_BYTES, checksum, combine
from dormouse_worker.native.library import Missing

SIZES = [0, 1, 7, 8, 4095, 4096, 4097, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 12345]


@pytest.fixture(params=["kernels", "numpy"])
def means(request, monkeypatch):
    """What a host sums up with."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "load_kernels", lambda: Missing("none were compiled"))
    elif isinstance(module.load_kernels(), Missing):
        pytest.skip("the kernels are not built")


def random_bytes(num_bytes, seed=0):
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def naive(data):
    """The definition, number by number, in Python's own integers."""
    mask = (1 << 64) - 1

    def mix(value):
        value &= mask
        value = (value ^ (value >> 32)) * (module._FACTOR & mask) & mask
        value = (value ^ (value >> 29)) * (module._KEY & mask) & mask
        return value ^ (value >> 32)

    raw = bytes(data.tolist())
    total = 0
    for block, start in enumerate(range(0, len(raw), BLOCK_BYTES)):
        part = raw[start : start + BLOCK_BYTES]
        part += bytes(-len(part) % 4096)
        words = memoryview(part).cast("q").tolist()
        sums = {row: sum(words[row * 512 : row * 512 + 512]) for row in range(len(words) // 512)}
        sums |= {256 + lane: sum(words[lane::512]) for lane in range(512)}
        total += sum(mix(value + (block * 768 + place) * module._KEY) for place, value in sums.items())
    return total & mask


@pytest.mark.usefixtures("means")
@pytest.mark.parametrize("num_bytes", [0, 5, 4096 * 3 + 100, BLOCK_BYTES + 9])
def test_it_is_what_its_definition_says(num_bytes):
    data = random_bytes(num_bytes)
    assert checksum(data) == naive(data)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_host_and_device_agree(num_bytes, monkeypatch):
    """The device's way, taken on the CPU, and with so few blocks at once that there are several rounds."""
    data = random_bytes(num_bytes)
    expected = checksum(data)
    monkeypatch.setattr(module, "load_kernels", lambda: Missing("a device has none"))
    monkeypatch.setattr(module, "_of_host", module._of_device)
    monkeypatch.setattr(module, "_DEVICE_BLOCKS", 2)
    assert checksum(data) == expected


@pytest.mark.usefixtures("means")
def test_memory_that_begins_between_two_numbers_agrees_too(monkeypatch):
    data = random_bytes(2 * BLOCK_BYTES + 100)
    shifted = torch.zeros(len(data) + 3, dtype=torch.uint8)[3:]
    shifted.copy_(data)
    assert checksum(shifted) == checksum(data)
    monkeypatch.setattr(module, "load_kernels", lambda: Missing("a device has none"))
    monkeypatch.setattr(module, "_of_host", module._of_device)
    assert checksum(shifted) == checksum(data)


def test_parts_cut_at_blocks_add_up():
    data = random_bytes(3 * BLOCK_BYTES + 999)
    cut = 2 * BLOCK_BYTES
    assert combine([checksum(data[:cut]), checksum(data[cut:], first_block=2)]) == checksum(data)
    assert combine([checksum(data[:cut]), checksum(data[cut:])]) != checksum(data)


@given(st.integers(0, 2 * BLOCK_BYTES + 98), st.integers(0, 7))
def test_every_flipped_bit_is_seen(position, bit):
    data = random_bytes(2 * BLOCK_BYTES + 99)
    before = checksum(data)
    data[position] ^= 1 << bit
    assert checksum(data) != before


@given(st.integers(0, (BLOCK_BYTES >> 2) - 1), st.integers(0, (BLOCK_BYTES >> 2) - 1), st.integers(0, 31))
def test_numbers_that_changed_places_are_seen(first, second, bit):
    """Also those that differ in one bit alone, be it the sign's."""
    data = torch.zeros(BLOCK_BYTES >> 2, dtype=torch.int32)
    data[first] = 1 << bit if bit < 31 else -(1 << 31)
    other = torch.zeros_like(data)
    other[second] = data[first]
    assert (checksum(data.view(torch.uint8)) == checksum(other.view(torch.uint8))) == (first == second)


def test_zeros_at_the_end_are_seen_once_they_fill_a_row():
    assert checksum(torch.zeros(4096, dtype=torch.uint8)) != checksum(torch.zeros(4097, dtype=torch.uint8))
