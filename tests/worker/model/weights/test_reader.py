"""Reading from safetensors files: into place, in another type, and what is told if the files change."""

import pytest
import torch
from safetensors.torch import save_file

from dormouse_worker.common.errors import ModelChanged, ModelInvalid
from dormouse_worker.files.safetensors_files import read_safetensors
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.reader import CheckpointSource, can_convert

ROWS = torch.randn(300, 257)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.safetensors"


def source_of(file):
    return CheckpointSource(lambda: read_safetensors(file).tensors, {"w": "w"})


def read(source, tensor, start=0, end=None):
    """Return the bytes [start, end) of `w` in the type of this tensor."""
    (slot,) = plan_layout([("w", tensor)]).slots
    end = slot.num_bytes if end is None else end
    target = torch.zeros(end - start, dtype=torch.uint8)
    with source.open() as read_into:
        read_into(slot, start, end, target)
    return target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_numbers_are_converted_as_torch_does(file, dtype, wanted):
    save_file({"v": torch.ones(3), "w": ROWS.to(dtype)}, file)
    expected = ROWS.to(dtype).to(wanted)
    assert torch.equal(read(source_of(file), expected).view(wanted), expected.view(-1))


@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_a_part_is_read_from_where_it_begins(file, wanted):
    save_file({"v": torch.ones(3), "w": ROWS}, file)
    expected = ROWS.to(wanted)
    size = wanted.itemsize
    part = read(source_of(file), expected, 1000 * size, 70_000 * size)
    assert torch.equal(part.view(wanted), expected.view(-1)[1000:70_000])


@pytest.mark.parametrize("tensor", [torch.arange(5), torch.tensor([True, False]), torch.tensor(3, dtype=torch.int8)])
def test_whole_numbers_stay_what_they_are(file, tensor):
    save_file({"w": tensor}, file)
    assert torch.equal(read(source_of(file), tensor).view(tensor.dtype), tensor.view(-1))


def test_only_floating_point_is_converted():
    assert can_convert("BF16", torch.float32)
    assert can_convert("I64", torch.int64)
    assert not can_convert("I64", torch.float32)
    assert not can_convert("F32", torch.int8)
    assert not can_convert("F8_E4M3", torch.bfloat16)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"w": torch.zeros(300, 257, dtype=torch.bfloat16)}, r"w was F32 \[300, 257\] and is BF16 \[300, 257\]"),
        ({"w": torch.zeros(257, 300)}, r"w was F32 \[300, 257\] and is F32 \[257, 300\]"),
        ({"v": torch.zeros(1)}, "w is no longer among the model's weights"),
    ],
)
def test_another_tensor_under_the_name_is_told(file, after, message):
    save_file({"w": ROWS}, file)
    source = source_of(file)
    read(source, ROWS)
    save_file(after, file)
    with pytest.raises(ModelChanged, match=message):
        read(source, ROWS)


def test_a_file_that_is_cut_while_it_is_read_ends_no_process(file):
    save_file({"w": ROWS}, file)
    (slot,) = plan_layout([("w", ROWS)]).slots
    with source_of(file).open() as read_into:
        file.write_bytes(file.read_bytes()[:1000])
        with pytest.raises(ModelChanged, match=r"model.safetensors: cut to \d+ bytes while it was read"):
            read_into(slot, 0, slot.num_bytes, torch.zeros(slot.num_bytes, dtype=torch.uint8))


def test_a_file_that_vanished_since_its_header_was_read_is_told(file):
    save_file({"w": ROWS}, file)
    tensors = read_safetensors(file).tensors
    file.unlink()
    with pytest.raises(ModelInvalid, match=r"model\.safetensors: cannot be opened: .*No such file"):
        read(CheckpointSource(lambda: tensors, {"w": "w"}), ROWS)
