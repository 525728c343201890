"""An EAGLE-3 head's own tokens are tokens of its model, each another one."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import read_safetensors
from dormouse_worker.model.drafting.vocabulary_map import read_targets


def read(tmp_path, d2t=None, t2d=None):
    tensors = {"other": np.zeros(3, np.float32)}
    if d2t is not None:
        tensors["d2t"] = np.array(d2t, np.int64)
    if t2d is not None:
        tensors["t2d"] = np.array(t2d, np.bool_)
    save_file(tensors, tmp_path / "head.safetensors")
    return read_targets(read_safetensors(tmp_path / "head.safetensors").tensors, 5)


def test_they_are_what_is_added_to_them(tmp_path):
    assert read(tmp_path, [1, 1, 2], [0, 1, 1, 0, 1]).tolist() == [1, 2, 4]
    assert read(tmp_path, [4, 2, 0]).tolist() == [4, 3, 2]


def test_without_a_map_both_vocabularies_are_the_same(tmp_path):
    assert read(tmp_path) is None
    assert read(tmp_path, [0] * 5, [1] * 5) is None


@pytest.mark.parametrize(
    ("d2t", "t2d", "named"),
    [
        ([1, 4], None, "d2t makes 5 of the head's token 1, and the model has 5 tokens"),
        ([-1, 0], None, "d2t makes -1 of the head's token 0"),
        ([0, 2**63 - 1], None, "of the head's token 1, and the model has 5 tokens"),
        ([2, 2, 0], None, "d2t makes 2 of the head's token 0, as another one does"),
        ([0, 0], [1, 0, 0, 0, 0], "t2d is of other tokens than d2t"),
    ],
)
def test_a_map_that_cannot_be_is_refused_by_name(tmp_path, d2t, t2d, named):
    with pytest.raises(ModelInvalid) as refused:
        read(tmp_path, d2t, t2d)
    assert named in str(refused.value)


def test_a_file_that_is_gone_or_shorter_is_refused_by_name(tmp_path):
    read(tmp_path, [1, 1, 2])
    tensors = read_safetensors(tmp_path / "head.safetensors").tensors
    contents = (tmp_path / "head.safetensors").read_bytes()
    (tmp_path / "head.safetensors").write_bytes(contents[: tensors["d2t"].end - 4])
    with pytest.raises(ModelInvalid, match="ended while it was read"):
        read_targets(tensors, 5)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(ModelInvalid, match="cannot be read"):
        read_targets(tensors, 5)
