"""An adapter of a hub comes into a cache: its two files and nothing else, once, checked before they come. No torch.

    cache/ORG%2FNAME@REVISION/COMMIT/   adapter_config.json   adapter_model.safetensors

What is there and has the wanted digest is left alone, and the hub is not asked: a restart does not need it, and a
branch that moves on changes no adapter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from dormouse_worker.common.errors import AdapterInvalid, AdapterNotFound, HubUnreachable, PickleRefused
from dormouse_worker.files.adapter_config import LoraConfig, parse_config
from dormouse_worker.files.adapter_files import (
    CONFIG_FILE,
    MAX_CONFIG_BYTES,
    PICKLES,
    WEIGHTS_FILE,
    begin_digest,
    read_config_file,
)
from dormouse_worker.files.hub import HubFile, Remedies, Snapshot
from dormouse_worker.files.hub_folder import Source, check_room, fetch_missing, read_mark, turn, write_mark
from dormouse_worker.files.soft_prompt_config import SoftPromptConfig

# 32 million rows and columns of float32: twice what all linear layers of a model with 405 billion weights have.
MAX_BYTES_PER_RANK = 128 << 20
MAX_HEADER_BYTES = 1 << 20  # of a soft prompt, which is one tensor of four bytes a number
REMEDIES = Remedies(  # nosec B106  # a sentence
    token="set tokenSecretRef to a Secret whose token may read it, or HF_TOKEN",  # noqa: S106  # a sentence
    repo="check the adapter's uri",
    revision="check what stands behind the @ of its uri",
    room="remove adapters, or name a larger --lora-cache",
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DIGEST = "digest"  # of the mark


def home_of(cache: Path, uri: str, opened_by: str = "") -> Path:
    """Return the folder of all that came of a URI by the token in SECRET/KEY, or by none; no two have one."""
    name = quote(uri.removeprefix("hf://"), safe="@")
    return cache / (f"{name},{quote(opened_by, safe='')}" if opened_by else name)


def find_adapter(home: Path, digest: str) -> Path | None:
    """Return the newest that came whole and has the digest; "" = any."""
    whole = [(mark.stat().st_mtime_ns, mark.parent) for mark in home.glob("*/.dormouse-complete.json")]
    known = ((path, read_mark(path)) for _, path in sorted(whole, reverse=True))
    return next((path for path, mark in known if mark and digest in {"", mark.get(_DIGEST)}), None)


def fetch_adapter(
    source: Source, uri: str, home: Path, *, digest: str, max_rank: int, say: Callable[[str], object]
) -> Path:
    """Return the adapter's directory, whole. Raises WorkerError; what has come so far is continued next time."""
    home.mkdir(parents=True, exist_ok=True)
    with turn(home):
        if (found := find_adapter(home, digest)) is not None:
            return found
        snapshot = source.look_up()
        if not _COMMIT.fullmatch(snapshot.commit):
            raise HubUnreachable(f"{uri}: the hub names no commit but {snapshot.commit[:80]!r}")
        directory = home / snapshot.commit
        directory.mkdir(exist_ok=True)
        mark = read_mark(directory) or _fetch(source, uri, snapshot, directory, max_rank=max_rank, say=say)
        if digest not in {"", mark[_DIGEST]}:
            raise AdapterNotFound(
                f"{uri}: its digest at commit {snapshot.commit} is {mark[_DIGEST]}, not {digest}; name another commit"
            )
    return directory


def _fetch(
    source: Source, uri: str, snapshot: Snapshot, directory: Path, *, max_rank: int, say: Callable[[str], object]
) -> dict[str, str]:
    """Fetch the configuration, and the weights if it says that they can be used and are no larger than such are."""
    config, weights = _choose(snapshot, uri)
    fetch_missing(source, snapshot.commit, [config], directory, say=say)
    try:
        parsed = parse_config(read_config_file(directory / CONFIG_FILE), max_rank)
    except AdapterInvalid as error:
        raise AdapterInvalid(f"{uri}: {error}") from error
    most, why = _most_bytes(parsed)
    if weights.num_bytes > most:
        raise AdapterInvalid(f"{uri}: {WEIGHTS_FILE} has {weights.num_bytes} bytes; {why} it has at most {most}")
    check_room(directory, [weights], REMEDIES)
    fetch_missing(source, snapshot.commit, [weights], directory, say=say)
    digest = _digest_of(directory)
    write_mark(directory, snapshot.commit, [config, weights], digest=digest)
    return {_DIGEST: digest}


def _most_bytes(config: LoraConfig | SoftPromptConfig) -> tuple[int, str]:
    """Return how large the weights can be, and by what."""
    if isinstance(config, SoftPromptConfig):
        return MAX_HEADER_BYTES + config.num_tokens * config.size * 4, f"with {config.num_tokens} virtual tokens"
    return (config.max_rank + 1) * MAX_BYTES_PER_RANK, f"at rank {config.max_rank}"


def _choose(snapshot: Snapshot, uri: str) -> tuple[HubFile, HubFile]:
    """Return the configuration and the weights. Raises AdapterInvalid, PickleRefused."""
    files = {file.name: file for file in snapshot.files}
    if WEIGHTS_FILE not in files and (pickle := next((name for name in PICKLES if name in files), None)):
        raise PickleRefused(f"{uri}: {pickle} is a pickle, which can run code; save the adapter as safetensors")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in files:
            raise AdapterInvalid(f"{uri}: the repository has no {name}; an adapter is {CONFIG_FILE} and {WEIGHTS_FILE}")
    config = files[CONFIG_FILE]
    if config.num_bytes > MAX_CONFIG_BYTES:
        raise AdapterInvalid(f"{uri}: {CONFIG_FILE} has {config.num_bytes} bytes; allowed are {MAX_CONFIG_BYTES}")
    return config, files[WEIGHTS_FILE]


def _digest_of(directory: Path) -> str:
    """Return what an engine says of these files when it has read them."""
    weights = directory / WEIGHTS_FILE
    whole = begin_digest((directory / CONFIG_FILE).read_bytes(), weights.stat().st_size)
    with weights.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            whole.update(chunk)
    return whole.hexdigest()
