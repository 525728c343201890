"""SaveShardedState and what reads it: the same memory, or a refusal that names what does not fit."""

import errno
import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dormouse_worker.common.errors import InvalidArgument, ModelInvalid, StorageFull, WrongState
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.validation import check_settings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import ARCHITECTURES, write_tiny_model
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors

NAME = "dormouse-rank-0-of-1.safetensors"


@pytest.fixture
def load_from():
    """Return a function (directory, device, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, device=None, **settings):
        settings = EngineSettings(model=str(directory), block_size=4, **settings)
        check_settings(settings)
        models.append(load(settings, device or FakeDevice()))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


@pytest.fixture
def original(tmp_path):
    return write_tiny_model(tmp_path / "original")


@pytest.fixture
def saved(original, load_from, tmp_path):
    """Return the directory of a saved state."""
    save_sharded_state(load_from(original).weights, original, tmp_path / "saved")
    return tmp_path / "saved"


def snapshot(model):
    return {name: tensor.detach().clone() for name, tensor in iter_tensors(model.module)}


def assert_equal(tensors, others):
    assert tensors.keys() == others.keys()
    assert not [name for name in tensors if tensors[name].dtype != others[name].dtype]
    assert not [name for name in tensors if not torch.equal(tensors[name], others[name])]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_was_saved_is_what_is_loaded(tiny_model, load_from, tmp_path, architecture):
    first = load_from(tiny_model(architecture), dtype="bfloat16")
    save_sharded_state(first.weights, tiny_model(architecture), tmp_path / "saved")
    second = load_from(tmp_path / "saved", dtype="bfloat16", load_format="sharded_state")
    assert_equal(snapshot(second), snapshot(first))
    assert (second.load_report.path, second.load_report.format) == ("fast", "sharded_state")


@pytest.mark.parametrize(
    ("make_device", "settings"),
    [(FakeDevice, {}), (FakeDevice, {"keep_host_copy": False}), (lambda: CpuDevice(Host()), {})],
)
def test_it_is_the_same_file_from_every_device(original, load_from, tmp_path, make_device, settings):
    save_sharded_state(load_from(original, make_device(), **settings).weights, original, tmp_path / "saved")
    tensors = load_file(tmp_path / "saved" / NAME)
    assert_equal(tensors, load_file(original / "model.safetensors"))


def test_it_sleeps_and_wakes_as_others_do(saved, load_from):
    model = load_from(saved, load_format="sharded_state")
    before = snapshot(model)
    model.weights.save(2)
    model.weights.drop()
    model.weights.restore()
    assert_equal(snapshot(model), before)


def test_the_directory_is_a_models_own_without_its_checkpoint(original, saved):
    (original / "model.safetensors.index.json").write_text("{}")
    names = {file.name for file in saved.iterdir()}
    assert names == {NAME, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert (saved / "tokenizer.json").read_bytes() == (original / "tokenizer.json").read_bytes()
    with safe_open(saved / NAME, "pt") as file:
        assert file.metadata().keys() == {"format", "version", "rank", "world_size", "config_sha256"}


def test_nothing_that_exists_is_overwritten(original, load_from, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    model = load_from(original)
    with pytest.raises(InvalidArgument, match="exists and is no empty directory; nothing is overwritten"):
        save_sharded_state(model.weights, original, tmp_path / "out")
    (tmp_path / "out" / "precious").unlink()
    save_sharded_state(model.weights, original, tmp_path / "out")
    assert (tmp_path / "out" / NAME).is_file()


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("relative", "an absolute path without '..' is needed"),
        ("{tmp}/a/../b", "an absolute path without '..' is needed"),
        ("{tmp}/missing/out", "whose parent does not exist"),
        ("{tmp}/original/out", "lies within the model's own"),
        ("{tmp}/link", "a symbolic link or a mount"),
        ("{tmp}/file", "exists and is no empty directory"),
        ("/proc", "a symbolic link or a mount"),
        ("/proc/out", "cannot be written"),
    ],
)
def test_a_place_where_nothing_may_be_written_is_refused(original, load_from, tmp_path, directory, message):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidArgument, match=message):
        save_sharded_state(load_from(original).weights, original, type(original)(directory.format(tmp=tmp_path)))
    assert sorted(tmp_path.iterdir()) == before


class FullDisk:
    """Writes until `left` writes are done, each half of what is asked; then there is no room."""

    def __init__(self, left, code=errno.ENOSPC):
        self.left = left
        self.code = code

    def __call__(self, file, data):
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code))
        self.left -= 1
        return os.write(file, data[: max(1, len(data) // 2)])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("left", [0, 1, 20, 100])
def test_a_full_disk_is_told_and_nothing_is_left(original, load_from, tmp_path, left, code):
    model = load_from(original)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageFull, match=r"saved: no room for \d+ bytes of weights"):
        save_sharded_state(model.weights, original, tmp_path / "saved", write=FullDisk(left, code))
    assert sorted(tmp_path.iterdir()) == before


def test_short_writes_are_gone_on_with(original, load_from, tmp_path):
    save_sharded_state(load_from(original).weights, original, tmp_path / "saved", write=FullDisk(-1))
    assert_equal(load_file(tmp_path / "saved" / NAME), load_file(original / "model.safetensors"))


def test_an_error_of_the_disk_is_told_and_nothing_is_left(original, load_from, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidArgument, match=r"cannot be written: .*Input/output error"):
        save_sharded_state(load_from(original).weights, original, tmp_path / "saved", write=FullDisk(3, errno.EIO))
    assert sorted(tmp_path.iterdir()) == before


def test_sleeping_weights_can_not_be_saved(original, load_from, tmp_path):
    model = load_from(original)
    model.weights.save(1)
    model.weights.drop()
    with pytest.raises(WrongState, match="the weights sleep"):
        save_sharded_state(model.weights, original, tmp_path / "saved")


def edit_metadata(**fields):
    def edit(directory):
        with safe_open(directory / NAME, "pt") as file:
            metadata = file.metadata()
        save_file(load_file(directory / NAME), directory / NAME, {**metadata, **fields})

    return edit


def edit_tensors(change):
    def edit(directory):
        with safe_open(directory / NAME, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(directory / NAME)
        change(tensors)
        save_file(tensors, directory / NAME, metadata)

    return edit


def edit_config(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))


def rename(name):
    return lambda directory: (directory / NAME).rename(directory / name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit_metadata(version="2"), "its version is '2', '1' is needed"),
        (edit_metadata(rank="1"), "its rank is '1', '0' is needed"),
        (edit_metadata(world_size="2"), "its world_size is '2', '1' is needed"),
        (edit_metadata(format="pt"), "its format is 'pt', 'dormouse-sharded-state' is needed"),
        (edit_config, "its config_sha256 is"),
        (rename("dormouse-rank-0-of-2.safetensors"), "missing; the directory holds dormouse-rank-0-of-2.safetensors"),
        (rename("model.safetensors"), "missing; the directory holds none that SaveShardedState wrote"),
        (edit_tensors(lambda tensors: tensors.pop("lm_head.weight")), "lm_head.weight, which config.json asks for, is"),
        (edit_tensors(lambda tensors: tensors.update(more=torch.ones(1))), "more is in the sharded state, but has no"),
        (
            edit_tensors(lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)})),
            r"model\.norm\.weight is F32 \[31\], F32 \[32\] is needed",
        ),
    ],
)
def test_what_does_not_fit_is_named(saved, load_from, damage, message):
    damage(saved)
    with pytest.raises(ModelInvalid, match=message):
        load_from(saved, load_format="sharded_state")


def test_another_type_than_the_saved_one_is_refused(saved, load_from):
    with pytest.raises(ModelInvalid, match=r"is F32 .*, BF16 .* is needed; set the dtype that it was saved with"):
        load_from(saved, load_format="sharded_state", dtype="bfloat16")
