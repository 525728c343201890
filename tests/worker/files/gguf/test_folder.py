"""A GGUF file as a directory: what is in it, where it lies, which files are meant."""

import json

import gguf
import msgspec
import pytest

from dormouse_worker.common.errors import ModelInvalid, ModelNotFound
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.folder import as_directory, make_directory
from dormouse_worker.files.model_digest import digest_model
from dormouse_worker.files.model_files import check_model_files
from tests.worker.files.gguf.kit import BYTE_LEVEL, LLAMA, llama_tensors, write


def settings(model, cache):
    return EngineSettings(model=str(model), tokenizer_cache=str(cache))


def split(folder, count=2, *, told=None):
    """Write a model in parts; return the first one's file."""
    tensors = list(llama_tensors().items())
    for number in range(count):
        mine = dict(tensors[number::count])
        keys = {**(LLAMA | BYTE_LEVEL if number == 0 else {}), **(told or {"split.no": number, "split.count": count})}
        write(folder / f"m-{number + 1:05}-of-{count:05}.gguf", keys, mine)
    return folder / f"m-00001-of-{count:05}.gguf"


def test_a_file_or_its_directory_becomes_one_that_any_worker_reads(tmp_path):
    file = write(tmp_path / "models" / "m.gguf") if (tmp_path / "models").mkdir() is None else None
    (tmp_path / "models" / "mmproj-m.gguf").touch()
    made = as_directory(settings(file, tmp_path / "cache"))
    assert as_directory(settings(file.parent, tmp_path / "cache")) == made
    assert as_directory(made) == made
    files = check_model_files(made.model_path, "auto")
    assert files.config["model_type"] == "llama"
    assert files.gguf is not None
    assert [one.resolve() for one in files.weight_files] == [file]
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0
    assert not list((tmp_path / "cache").glob("tmp*"))


def test_other_directories_stay_what_they_are(tmp_path):
    (tmp_path / "model.safetensors").touch()
    write(tmp_path / "m.gguf")
    before = settings(tmp_path, tmp_path / "cache")
    assert as_directory(before) == before
    missing = settings(tmp_path / "none", tmp_path / "cache")
    assert as_directory(missing) == missing


def test_a_directory_with_several_models_names_them(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        write(tmp_path / name)
    with pytest.raises(
        ModelInvalid, match=r"has 2 GGUF models, a\.gguf, b\.gguf; name one of them in spec\.model\.uri"
    ):
        as_directory(settings(tmp_path, tmp_path / "cache"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"m\.gguf: no such file"):
        as_directory(settings(tmp_path / "m.gguf", tmp_path / "cache"))


def test_a_cache_that_others_could_fill_is_refused(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write there; give --tokenizer-cache"):
        make_directory(write(tmp_path / "m.gguf"), tmp_path / "cache")


def test_parts_are_one_model_by_the_name_of_any(tmp_path):
    first = split(tmp_path)
    whole = write(tmp_path / "whole" / "m.gguf") if (tmp_path / "whole").mkdir() is None else None
    made = make_directory(tmp_path / "m-00002-of-00002.gguf", tmp_path / "cache")
    assert make_directory(first, tmp_path / "cache") == made
    files, one = (check_model_files(folder, "auto") for folder in (made, make_directory(whole, tmp_path / "cache")))
    assert files.tensors.keys() == one.tensors.keys()
    assert files.config == one.config
    assert digest_model(files) != digest_model(one)


def test_parts_that_are_missing_or_others_are_refused(tmp_path):
    split(tmp_path)
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(ModelNotFound, match=r"m-00001-of-00002\.gguf: no such file"):
        make_directory(tmp_path / "m-00002-of-00002.gguf", tmp_path / "cache")
    with pytest.raises(ModelInvalid, match=r"says that it is part 0 of 3 \(split\.no, split\.count\), and its name"):
        make_directory(split(tmp_path, told={"split.no": 0, "split.count": 3}), tmp_path / "cache")
    with pytest.raises(ModelInvalid, match="is one of 0 parts"):
        make_directory(tmp_path / "m-00001-of-00000.gguf", tmp_path / "cache")


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    first = split(tmp_path)
    write(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1, "split.count": 2}, llama_tensors())
    with pytest.raises(ModelInvalid, match="is in another part, too"):
        make_directory(first, tmp_path / "cache")


def test_the_digest_is_of_what_is_in_the_file(tmp_path):
    def digest(**keys):
        file = write(tmp_path / "m.gguf", LLAMA | BYTE_LEVEL | keys)
        return digest_model(check_model_files(make_directory(file, tmp_path / "cache"), "auto"))

    first = digest()
    assert digest() == first
    assert digest(**{"llama.rope.freq_base": 2e4}) != first


def test_a_header_that_says_no_number_is_refused(tmp_path):
    file = write(tmp_path / "m.gguf", LLAMA | BYTE_LEVEL | {"llama.rope.freq_base": float("nan")})
    with pytest.raises(ModelInvalid, match=r"config\.json would have a number that is not finite"):
        make_directory(file, tmp_path / "cache")


def test_settings_are_else_what_they_were(tmp_path):
    before = settings(write(tmp_path / "m.gguf"), tmp_path / "cache")
    made = as_directory(before)
    assert msgspec.structs.replace(made, model=before.model) == before
    assert gguf.GGUFReader(next(made.model_path.glob("*.gguf"))).tensors
    assert json.loads((made.model_path / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
