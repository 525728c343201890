"""An adapter of a hub: its two files, once, and what is refused before its weights come."""

from __future__ import annotations

import pytest
from huggingface_hub import close_session

from dormouse_api.hub_uri import HubRepo, parse_hub_uri
from dormouse_worker.common.errors import AdapterInvalid, AdapterNotFound, HubUnreachable, PickleRefused, StorageFull
from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE, check_adapter_files
from dormouse_worker.files.hub import Hub
from dormouse_worker.files.hub_adapter import MAX_BYTES_PER_RANK, MAX_HEADER_BYTES, fetch_adapter, find_adapter, home_of
from tests.worker.files.test_adapter_files import BASE, digest_of, write
from tests.worker.files.test_soft_prompt_files import FIELDS as SOFT_FIELDS
from tests.worker.files.test_soft_prompt_files import TENSORS as SOFT_TENSORS
from tests.worker.hub_server import COMMIT, HubServer

URI = "hf://org/tiny@main"
OTHER = "beef" * 10


@pytest.fixture
def hub(tmp_path):
    local = write(tmp_path / "local")
    with HubServer() as server:
        names = (CONFIG_FILE, WEIGHTS_FILE)
        server.state.files = {name: (local / name).read_bytes() for name in names} | {"README.md": b"x", "a.bin": b"y"}
        yield server
        close_session()


@pytest.fixture
def home(tmp_path):
    return home_of(tmp_path / "cache", URI)


@pytest.fixture
def fetch(hub, home):
    def fetched(digest="", **fields):
        source = Hub("org/tiny", "main", endpoint=hub.endpoint)
        return fetch_adapter(source, URI, home, digest=digest, say=print, **{"max_rank": 8, **fields})

    return fetched


def asked(hub):
    """Return the files that were asked for."""
    return [path.rpartition("/")[2] for path, _ in hub.state.asked if "/resolve/" in path]


def write_digest(directory):
    return digest_of(check_adapter_files(directory, BASE, max_rank=8))


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("hf://org/tiny", HubRepo("org/tiny", "main")),
        ("hf://org/tiny@v1", HubRepo("org/tiny", "v1")),
        ("hf://Org.1/ti_ny@refs/pr/1", HubRepo("Org.1/ti_ny", "refs/pr/1")),
        *((wrong, None) for wrong in ("hf://tiny", "hf://a/b/c", "hf://../b", "hf://a/b@", "hf://a/b@x/../y", "/a/b")),
    ],
)
def test_what_a_uri_names(uri, named):
    assert parse_hub_uri(uri) == named


def test_only_its_two_files_come_and_have_the_digest_that_an_engine_finds(hub, fetch, home):
    path = fetch()
    assert sorted(file.name for file in path.iterdir() if not file.name.startswith(".")) == [CONFIG_FILE, WEIGHTS_FILE]
    assert asked(hub) == [CONFIG_FILE, WEIGHTS_FILE]
    assert find_adapter(home, write_digest(path)) == path == home / COMMIT
    assert find_adapter(home, "0" * 64) is None


def test_what_is_here_needs_no_hub_and_stays_as_it_is(hub, fetch):
    path = fetch()
    digest = write_digest(path)
    hub.state.commit, hub.state.status = OTHER, 503
    assert fetch() == fetch(digest) == path


def test_another_digest_is_looked_for_at_the_revisions_newest_commit(hub, fetch, tmp_path):
    first = fetch()
    newer = write(tmp_path / "newer", {"lora_alpha": 8})
    hub.state.files[CONFIG_FILE] = (newer / CONFIG_FILE).read_bytes()
    hub.state.commit = OTHER
    path = fetch(write_digest(newer))
    assert path.name == OTHER
    assert write_digest(path) == write_digest(newer)
    assert fetch(write_digest(first)) == first


def test_a_digest_that_the_hub_does_not_have_fetches_once(hub, fetch):
    fetch()
    hub.state.asked.clear()
    for _ in range(2):
        with pytest.raises(AdapterNotFound, match=f"at commit {COMMIT} is [0-9a-f]{{64}}, not 0{{64}}"):
            fetch("0" * 64)
    assert not asked(hub)


def test_a_soft_prompt_is_no_larger_than_its_vectors(hub, fetch, tmp_path):
    soft = write(tmp_path / "soft", SOFT_FIELDS, SOFT_TENSORS)
    right = (soft / WEIGHTS_FILE).read_bytes()
    hub.state.files |= {CONFIG_FILE: (soft / CONFIG_FILE).read_bytes(), WEIGHTS_FILE: right + bytes(MAX_HEADER_BYTES)}
    with pytest.raises(AdapterInvalid, match=f"with 5 virtual tokens it has at most {MAX_HEADER_BYTES + 80}"):
        fetch()
    hub.state.files[WEIGHTS_FILE] = right
    assert (fetch() / WEIGHTS_FILE).read_bytes() == right


def test_weights_that_broke_off_are_continued(hub, fetch):
    whole = hub.state.files[WEIGHTS_FILE]
    hub.state.cut[WEIGHTS_FILE] = 10
    with pytest.raises(Exception, match="ended after 10 of"):
        fetch()
    hub.state.cut.clear()
    hub.state.asked.clear()
    assert (fetch() / WEIGHTS_FILE).read_bytes() == whole
    assert hub.state.asked[-1] == (f"/org/tiny/resolve/{COMMIT}/{WEIGHTS_FILE}", "bytes=10-")


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({CONFIG_FILE: b'{"peft_type": "IA3"}'}, AdapterInvalid, "peft_type is 'IA3'"),
        ({CONFIG_FILE: b"["}, AdapterInvalid, "not readable as JSON"),
        ({CONFIG_FILE: None}, AdapterInvalid, f"the repository has no {CONFIG_FILE}"),
        ({WEIGHTS_FILE: None}, AdapterInvalid, f"the repository has no {WEIGHTS_FILE}"),
        ({WEIGHTS_FILE: None, "adapter_model.bin": b"x"}, PickleRefused, "adapter_model.bin is a pickle"),
    ],
)
def test_what_cannot_be_used_is_refused_before_its_weights_come(hub, fetch, changed, kind, words):
    hub.state.files.update({name: content for name, content in changed.items() if content is not None})
    for name in (name for name, content in changed.items() if content is None):
        del hub.state.files[name]
    with pytest.raises(kind, match=words):
        fetch()
    assert WEIGHTS_FILE not in asked(hub)


def test_a_rank_above_the_workers_is_refused_before_its_weights_come(hub, fetch):
    with pytest.raises(AdapterInvalid, match="its rank is 2; max_lora_rank is 1"):
        fetch(max_rank=1)
    assert WEIGHTS_FILE not in asked(hub)


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        (WEIGHTS_FILE, 3 * MAX_BYTES_PER_RANK + 1, f"at rank 2 it has at most {3 * MAX_BYTES_PER_RANK}"),
        (CONFIG_FILE, 1 << 21, "allowed are 1048576"),
    ],
)
def test_files_that_are_too_large_are_refused_before_they_come(hub, fetch, name, size, words):
    hub.state.sizes[name] = size
    with pytest.raises(AdapterInvalid, match=words):
        fetch()
    assert name not in asked(hub)


def test_a_disk_without_room_is_told_before_the_weights_come(hub, fetch, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1}))  # the library's, not ours
    with pytest.raises(StorageFull, match="remove adapters"):
        fetch()
    assert WEIGHTS_FILE not in asked(hub)


def test_a_commit_that_is_a_path_leads_nowhere(hub, fetch, home):
    hub.state.commit = "../../elsewhere"
    with pytest.raises(HubUnreachable, match="names no commit"):
        fetch()
    assert not [path for path in home.iterdir() if path.is_dir()]
