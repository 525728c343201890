"""What `dormouse serve MODEL` takes MODEL for, and what it says when it is nothing that can be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from dormouse_cli.errors import CommandFailed
from dormouse_cli.models import OnHub, cache_folder, find_model


def test_a_directory_is_served_as_it_is(tmp_path, monkeypatch):
    assert find_model(str(tmp_path), "main") == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_model(".", "main") == tmp_path


@pytest.mark.parametrize("text", ["org/name", "hf://org/name", "HuggingFaceTB/SmolLM2-135M_v1.0"])
def test_what_is_no_directory_and_looks_like_a_hubs_name_is_on_the_hub(text):
    assert find_model(text, "v1") == OnHub(text.removeprefix("hf://"), "v1")


def test_a_directory_of_that_name_goes_first(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model("org/name", "main") == Path("org/name")


@pytest.mark.parametrize("text", ["/models/tiny", "./tiny", "tiny", "../a/b", "a/b/c", "org/-x", "org/..", "s3://x/y"])
def test_what_is_nothing_is_refused_with_both_ways(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CommandFailed, match=r"give a model's directory or GGUF file, or its name on the hub \(ORG/NAME\)"
    ):
        find_model(text, "main")


def test_a_gguf_file_is_a_model_and_so_is_its_directory(tmp_path):
    (tmp_path / "m.gguf").touch()
    assert find_model(str(tmp_path / "m.gguf"), "main") == tmp_path / "m.gguf"
    assert find_model(str(tmp_path), "main") == tmp_path
    with pytest.raises(CommandFailed, match="there is no"):
        find_model(str(tmp_path / "absent.gguf"), "main")


def test_one_of_a_hubs_gguf_files_is_named_as_elsewhere():
    found = find_model("org/name:Q4_K_M", "main")
    assert found == OnHub("org/name", "main", "Q4_K_M")
    assert found.directory(Path("/c")) == Path("/c/models/org--name--main--Q4_K_M")


def test_another_file_is_no_directory(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CommandFailed, match=r"is a file: give the directory that holds config\.json"):
        find_model(str(tmp_path / "model.safetensors"), "main")


def test_each_revision_has_a_folder_of_its_own_in_the_users_cache(tmp_path):
    branch, tag = OnHub("org/name", "refs/pr/1"), OnHub("org/name", "main")
    assert branch.directory(tmp_path) == tmp_path / "models" / "org--name--refs-pr-1"
    assert tag.directory(tmp_path).parent == branch.directory(tmp_path).parent
    assert cache_folder({"DORMOUSE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/dormouse")
    assert cache_folder({}) == Path.home() / ".cache" / "dormouse"
