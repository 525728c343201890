"""The random numbers: known answers, and the number belongs to (seed, choice, position) alone."""

import numpy as np
import pytest

from dormouse_worker.model.sampling.philox import philox4x32, uniforms

FULL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([FULL] * 4, [FULL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_published_answers_come_out(counter, key, words):
    result = philox4x32(np.array([counter], dtype=np.uint64), np.array([key], dtype=np.uint64))
    assert result.tolist() == [words]


def test_a_number_does_not_depend_on_its_neighbours():
    many = uniforms([1, 2, 1 << 63], [0, 5, 9], [0, 3, 15])
    alone = [
        uniforms([seed], [position], [choice])[0] for seed, position, choice in ((1, 0, 0), (2, 5, 3), (1 << 63, 9, 15))
    ]
    assert alone == many.tolist()


def test_seed_position_and_choice_all_count():
    numbers = uniforms([1, 1, 2, 1 + (1 << 32), 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1])
    assert len(set(numbers.tolist())) == 5


def test_the_counter_is_position_then_choice_and_the_key_the_seed_low_word_first():
    words = philox4x32(np.array([[7, 3, 0, 0]], dtype=np.uint64), np.array([[5, 9]], dtype=np.uint64))
    high, low = int(words[0, 0]) >> 5, int(words[0, 1]) >> 6
    assert uniforms([5 + (9 << 32)], [7], [3]).tolist() == [(high * 2**26 + low) / 2**53]


def test_numbers_fill_the_unit_interval_evenly():
    numbers = uniforms([3] * 20000, list(range(20000)), [0] * 20000)
    assert 0 <= numbers.min() < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert abs(counts - 2000).max() < 200
