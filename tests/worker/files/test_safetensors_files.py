"""What a safetensors header may say, and what it is told if it says something else. Without torch."""

import json
import struct

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import read_safetensors


def entry(start=0, end=16, dtype="F32", shape=(4,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.fixture
def write(tmp_path):
    """Return a function (header, bytes of data) → file."""

    def write_file(header, num_bytes=16):
        text = json.dumps(header).encode()
        file = tmp_path / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(num_bytes))
        return file

    return write_file


def test_tensors_are_found_where_they_lie(write):
    file = write({"__metadata__": {"format": "pt"}, "b": entry(16, 20, "BF16", (2, 1)), "a": entry()}, 20)
    found = read_safetensors(file)
    base = file.stat().st_size - 20
    assert found.metadata == {"format": "pt"}
    assert {name: (t.dtype, t.shape, t.start - base, t.end - base) for name, t in found.tensors.items()} == {
        "a": ("F32", (4,), 0, 16),
        "b": ("BF16", (2, 1), 16, 20),
    }


def test_tensors_of_no_bytes_and_of_one_number_are_allowed(write):
    header = {"none": entry(0, 0, shape=(0, 3)), "one": entry(0, 4, shape=()), "nibbles": entry(4, 5, "F4", (2,))}
    assert len(read_safetensors(write(header, 5)).tensors) == 3


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(), "b": entry(8, 24)}, "tensor 'b' shares bytes with another tensor: at byte 8 where 16 is due"),
        ({"a": entry(), "b": entry()}, "shares bytes with another tensor"),
        ({"a": entry(), "b": entry(20, 36)}, "tensor 'b' begins behind a gap: at byte 20 where 16 is due"),
        ({"a": entry(4, 20)}, "begins behind a gap"),
        ({"a": entry(), "b": entry(16, 32)}, r"truncated or damaged: \d+ bytes, its header needs"),
        ({"a": entry(0, 8, shape=(2,))}, r"truncated or damaged: \d+ bytes, its header needs"),
        ({"a": entry(dtype="F31")}, "tensor 'a' is of type 'F31'; the format knows BOOL"),
        ({"a": entry(dtype=["F32"])}, r"is of type \['F32'\]"),
        ({"a": entry(shape=(5,))}, r"tensor 'a' is F32 \[5\] and takes the bytes 0 to 16, which do not match"),
        ({"a": entry(16, 0)}, "which do not match"),
        ({"a": entry(-16, 0)}, "no natural number among"),
        ({"a": entry(shape=(-4,))}, "no natural number among"),
        ({"a": entry(shape=(True, 4))}, "no natural number among"),
        ({"a": entry(0, 16.0)}, "no natural number among"),
        ({"a": entry(0, 1 << 80, "U8", (1 << 80,))}, "truncated or damaged"),
        ({"a": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}}, "without dtype, shape or data_offsets"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16]}}, "without dtype, shape or data_offsets"),
        ({"a": None}, "without dtype, shape or data_offsets"),
    ],
)
def test_what_does_not_add_up_is_told_with_the_file_and_the_tensor(write, header, message):
    with pytest.raises(ModelInvalid, match=rf"model\.safetensors: .*{message}"):
        read_safetensors(write(header))


def test_a_header_nested_beyond_all_measure_is_no_json(tmp_path):
    text = b"[" * 200_000
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(ModelInvalid, match="header is no JSON"):
        read_safetensors(file)


def test_metadata_of_another_kind_is_none(write):
    assert read_safetensors(write({"__metadata__": 3, "a": entry()})).metadata == {}
