"""A model of a hub comes into a directory: once, whole, checked, continued; every refusal has a reason and a remedy.

The hub is one on this machine that speaks the real one's file API; the real one was not asked.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import close_session

from dormouse_worker.common.errors import (
    HubUnreachable,
    ModelNotFound,
    NoSafetensors,
    StorageFull,
    Truncated,
    Unauthorized,
)
from dormouse_worker.download import choose_files, download, main
from dormouse_worker.files.hub import Hub, HubFile, Snapshot
from tests.worker.hub_server import COMMIT, HubServer

WEIGHTS = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "tokenizer.json": b"{} ", "model.safetensors": WEIGHTS, "README.md": b"x"}
NAME = "hf://org/tiny at revision main"


@pytest.fixture
def hub():
    with HubServer() as server:
        server.state.files = dict(FILES)
        yield server
        close_session()


def get(hub, directory, *, repo="org/tiny", revision="main", token=""):
    download(Hub(repo, revision, token=token, endpoint=hub.endpoint), directory, NAME)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def test_what_a_worker_needs_is_there_afterwards_and_nothing_else(hub, tmp_path):
    get(hub, tmp_path / "a" / "b")
    assert names(tmp_path / "a" / "b") == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "a" / "b" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_complete_directory_needs_no_hub_and_stays_as_it_is(hub, tmp_path):
    get(hub, tmp_path)
    asked = len(hub.state.asked)
    hub.state.files["config.json"] = b'{"newer": true}'
    get(hub, tmp_path)
    assert len(hub.state.asked) == asked
    assert (tmp_path / "config.json").read_bytes() == b"{}"


def test_a_file_that_went_missing_comes_again_and_the_others_do_not(hub, tmp_path):
    get(hub, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    hub.state.asked.clear()
    get(hub, tmp_path)
    assert [path.rpartition("/")[2] for path, _ in hub.state.asked] == ["main", "tokenizer.json"]


@pytest.mark.parametrize("left", [1, 1000, len(WEIGHTS)])
def test_a_partial_file_is_continued_where_it_broke_off(hub, tmp_path, left):
    (tmp_path / ".model.safetensors.partial").write_bytes(WEIGHTS[:left])
    get(hub, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [header for path, header in hub.state.asked if path.endswith("model.safetensors")]
    assert ranges == ([] if left == len(WEIGHTS) else [f"bytes={left}-"])


def test_a_process_that_is_killed_in_the_middle_of_a_file_is_continued_by_the_next(hub, tmp_path):
    """What the hub could send, less what sockets and one chunk hold, was written: no need to watch the process."""
    weights = bytes(48 << 20)
    hub.state.files["model.safetensors"] = weights
    hub.state.stall_after["model.safetensors"] = 40 << 20
    command = [sys.executable, "-m", "dormouse_worker.download", "--repo=org/tiny", f"--directory={tmp_path}"]
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / ".home"), "HF_HUB_OFFLINE": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert hub.state.stalled.wait(60)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    hub.state.stall_after.clear()
    hub.state.asked.clear()
    partial = tmp_path / ".model.safetensors.partial"
    here = partial.stat().st_size
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert names(tmp_path) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert here > 8 << 20
    files = [request for request in hub.state.asked if "/resolve/" in request[0]]
    assert files == [(f"/org/tiny/resolve/{COMMIT}/model.safetensors", f"bytes={here}-")], hub.state.asked
    assert "model.safetensors comes" in done.stdout
    assert f"commit {COMMIT}" in done.stdout


def test_a_private_repository_needs_the_token(hub, tmp_path):
    hub.state.token = "secret"
    with pytest.raises(Unauthorized, match=r"no token was sent; set spec\.model\.tokenSecretRef"):
        get(hub, tmp_path)
    with pytest.raises(Unauthorized, match="the token that was sent may not read it"):
        get(hub, tmp_path, token="other")
    get(hub, tmp_path, token="secret")
    assert "model.safetensors" in names(tmp_path)


def test_a_gated_repository_tells_of_its_terms(hub, tmp_path):
    hub.state.is_gated = True
    with pytest.raises(Unauthorized, match="gated: accept its terms"):
        get(hub, tmp_path, token="secret")


def test_what_does_not_exist_is_told_by_name(hub, tmp_path):
    with pytest.raises(ModelNotFound, match=r"spec\.model\.revision"):
        get(hub, tmp_path, revision="v9")
    hub.state.status = 404
    with pytest.raises(ModelNotFound, match=r"hf://org/tiny at revision main does not exist; check spec\.model\.uri"):
        get(hub, tmp_path)


def test_a_name_that_no_repository_can_have_is_refused(hub, tmp_path):
    with pytest.raises(ModelNotFound, match="a--b"):
        get(hub, tmp_path, repo="org/a--b")


def test_a_file_that_ends_early_is_truncated_and_what_came_is_kept(hub, tmp_path):
    hub.state.cut["model.safetensors"] = 5000
    for _ in range(2):  # the second time the hub has nothing to add
        with pytest.raises(Truncated, match=r"model\.safetensors"):
            get(hub, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    hub.state.cut.clear()
    get(hub, tmp_path)
    assert hub.state.asked[-1][1] == "bytes=5000-"


def test_a_file_with_another_content_is_thrown_away_and_comes_whole_next_time(hub, tmp_path):
    hub.state.damage.add("model.safetensors")
    with pytest.raises(Truncated, match="SHA-256"):
        get(hub, tmp_path)
    hub.state.damage.clear()
    get(hub, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.state.asked[-1][1] == ""


def test_a_hub_that_fails_is_no_fault_of_the_model(hub, tmp_path):
    hub.state.status = 500
    with pytest.raises(HubUnreachable, match="500"):
        get(hub, tmp_path)


def test_pickles_are_refused_before_anything_is_downloaded(hub, tmp_path):
    hub.state.files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with pytest.raises(NoSafetensors, match=r"only pickles, which can run code \(pytorch_model\.bin\)"):
        get(hub, tmp_path)
    assert len(hub.state.asked) == 1
    hub.state.files = {"config.json": b"{}"}
    with pytest.raises(NoSafetensors, match="no weights"):
        get(hub, tmp_path)


def test_files_of_other_formats_stay_where_they_are():
    named = ["model-1.safetensors", "onnx/model.safetensors", "consolidated.safetensors", "a.json", "x.gguf", "c.jinja"]
    files = choose_files(Snapshot("c", tuple(HubFile(name, 1) for name in named)), NAME)
    assert [file.name for file in files] == ["a.json", "c.jinja", "model-1.safetensors"]


class _Disk:
    """A source whose disk is full."""

    def look_up(self) -> Snapshot:
        return Snapshot("c", (HubFile("model.safetensors", 2**60),))

    def fetch(self, commit: str, file: HubFile, target: Path) -> None:
        raise AssertionError(f"{file.name} of {commit} cannot fit and is fetched to {target}")


def test_a_model_that_can_not_fit_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(StorageFull, match=r"GiB free, 1073741824\.00 GiB are missing; give spec\.cache more room"):
        download(_Disk(), tmp_path, NAME)


def test_a_disk_that_fills_up_on_the_way_is_told(hub, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dormouse_worker.files.hub.http_get", full)  # the library's, not ours
    with pytest.raises(StorageFull, match="No space left on device"):
        get(hub, tmp_path)


def test_the_program_leaves_its_last_words_where_the_kubelet_reads_them(hub, tmp_path, monkeypatch, capsys):
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.state.token = "secret"
    with pytest.raises(SystemExit) as ended:
        main(["--repo=org/tiny", f"--directory={tmp_path / 'model'}"], termination_log=log)
    assert ended.value.code == 1
    assert log.read_text().startswith("Unauthorized: hf://org/tiny at revision main does not exist or is private")
    assert capsys.readouterr().err.strip() == log.read_text()


def test_the_token_of_the_environment_is_sent_and_never_shown(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.state.token = "secret"
    main(["--repo=org/tiny", f"--directory={tmp_path}"], termination_log=tmp_path / "none")
    assert "secret" not in repr(Hub("a/b", "main", token="secret")) + "".join(capsys.readouterr())


def test_a_download_needs_no_torch():
    code = "import sys, dormouse_worker.download; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_only_gguf_file_of_a_repository_is_taken_alone():
    snapshot = Snapshot(COMMIT, (HubFile("config.json", 2), HubFile("m.Q4_K_M.gguf", 9)))
    assert [file.name for file in choose_files(snapshot, NAME)] == ["m.Q4_K_M.gguf"]


def test_of_several_gguf_files_one_has_to_be_named():
    names = ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf")
    snapshot = Snapshot(COMMIT, tuple(HubFile(name, 9) for name in names))
    for wanted, expected in (("q4_k_m", [names[1]]), ("m-Q8_0.gguf", [names[0]]), ("F16", [*names[3:]])):
        assert [file.name for file in choose_files(snapshot, NAME, wanted)] == expected
    for wanted, words in (
        ("", "holds 3 GGUF models; name one"),
        ("Q5", "holds 0 GGUF models that are called Q5; name"),
    ):
        with pytest.raises(ModelNotFound, match=rf"{words}.* of: m-F16, m-Q4_K_M, m-Q8_0"):
            choose_files(snapshot, NAME, wanted)


def test_a_gguf_file_that_is_named_goes_before_safetensors():
    snapshot = Snapshot(COMMIT, (HubFile("model.safetensors", 9), HubFile("m.Q4_0.gguf", 9)))
    assert [file.name for file in choose_files(snapshot, NAME, "Q4_0")] == ["m.Q4_0.gguf"]
    assert [file.name for file in choose_files(snapshot, NAME)] == ["model.safetensors"]


@pytest.mark.parametrize(("flags", "remedy"), [([], "spec.model.uri"), (["--standalone"], "check the name, ORG/NAME")])
def test_the_remedy_fits_the_place_where_the_user_said_what_he_wants(hub, tmp_path, monkeypatch, capsys, flags, remedy):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.state.status = 404
    with pytest.raises(SystemExit):
        main(["--repo", "org/tiny", "--directory", str(tmp_path / "m"), *flags], termination_log=tmp_path / "none")
    assert remedy in capsys.readouterr().err
