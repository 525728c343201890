"""`python -m dormouse_worker.download`: puts a model of a hub into a directory, once, then ends. Imports no torch.

The init container of a worker's pod. A directory that is complete is left alone and the hub is not asked, so that a
restart neither needs the hub nor changes the model under other replicas. Pods that share a volume take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from dormouse_worker.common.errors import NoSafetensors, WorkerError
from dormouse_worker.files.gguf.repository import choose_gguf
from dormouse_worker.files.hub import IN_A_CLUSTER, ON_A_MACHINE, Hub, HubFile, Remedies, Snapshot
from dormouse_worker.files.hub_folder import Source, check_room, fetch_missing, read_mark, turn, write_mark

TERMINATION_LOG = Path("/dev/termination-log")  # the kubelet shows what stands there
EXIT_FAILED = 1
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
_UNWANTED = ("*/*", "consolidated*.safetensors")  # other formats lie in folders; Mistral's holds the same weights twice


@dataclass(frozen=True, slots=True, repr=False)
class DownloadSettings:
    """What to download, and where to."""

    repo: str  # ORG/NAME
    revision: str  # branch, tag or commit
    directory: Path
    token: str  # HF_TOKEN; "" = none
    endpoint: str | None  # HF_ENDPOINT: address of the hub; None = the public one
    remedies: Remedies = IN_A_CLUSTER
    file: str = ""  # of GGUF files the one to take, by its name or quantization; "" = safetensors, or the only one


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> DownloadSettings:
    """Return the settings. Ends the program with code 2 and the flag's name on a bad value."""
    parser = argparse.ArgumentParser(prog="dormouse-download", description=__doc__)
    parser.add_argument("--repo", required=True, help="ORG/NAME on the hub that HF_ENDPOINT names")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--file", default="", help="a GGUF file, by its name or its quantization, such as Q4_K_M")
    parser.add_argument("--directory", required=True, type=Path, help="where the files shall lie")
    parser.add_argument("--standalone", action="store_true", help="say remedies of this machine, not of a cluster")
    flags = parser.parse_args(argv)
    token, endpoint = environ.get("HF_TOKEN", ""), environ.get("HF_ENDPOINT") or None
    remedies = ON_A_MACHINE if flags.standalone else IN_A_CLUSTER
    return DownloadSettings(flags.repo, flags.revision, flags.directory, token, endpoint, remedies, flags.file)


def choose_files(snapshot: Snapshot, name: str, gguf: str = "") -> list[HubFile]:
    """Return the files that a worker needs, the smallest first; of GGUF files those that are named.

    Raises NoSafetensors, or ModelNotFound where several GGUF models are there, or none of the name.
    """
    names = [file.name for file in snapshot.files]
    if gguf or not any(file.endswith(".safetensors") for file in names):
        chosen = choose_gguf(names, gguf, name) if gguf or any(file.endswith(".gguf") for file in names) else []
        if chosen:
            return [file for file in snapshot.files if file.name in chosen]
    wanted = [file for file in snapshot.files if _matches(file.name, _WANTED) and not _matches(file.name, _UNWANTED)]
    if not any(file.name.endswith(".safetensors") for file in wanted):
        pickles = sorted(file.name for file in snapshot.files if _matches(file.name, ("*.bin", "*.pt", "*.pth")))
        words = f"only pickles, which can run code ({pickles[0]})" if pickles else "no weights"
        raise NoSafetensors(f"{name} holds {words}; choose a repository, or a revision, with *.safetensors")
    return sorted(wanted, key=lambda file: (file.num_bytes, file.name))


def download(source: Source, directory: Path, name: str, remedies: Remedies = IN_A_CLUSTER, *, gguf: str = "") -> None:
    """Make the directory complete. Raises WorkerError; what has come so far stays and is continued next time."""
    directory.mkdir(parents=True, exist_ok=True)
    with turn(directory):
        if read_mark(directory):
            _say(f"{name} is in {directory} already")
            return
        snapshot = source.look_up()
        files = choose_files(snapshot, name, gguf)
        check_room(directory, files, remedies)
        fetch_missing(source, snapshot.commit, files, directory, say=_say)
        write_mark(directory, snapshot.commit, files)
    _say(f"{name} is in {directory}, commit {snapshot.commit}")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _say(words: str) -> None:
    print(words, flush=True)


def main(argv: Sequence[str] | None = None, *, termination_log: Path = TERMINATION_LOG) -> None:
    """Download; exit with 1 and a last line "Reason: words", which the condition ModelLoaded shows."""
    settings = parse_settings(sys.argv[1:] if argv is None else argv, os.environ)
    source = Hub(
        settings.repo,
        settings.revision,
        token=settings.token,
        endpoint=settings.endpoint,
        remedies=settings.remedies,
    )
    try:
        name = f"hf://{settings.repo} at revision {settings.revision}"
        download(source, settings.directory, name, settings.remedies, gguf=settings.file)
    except (WorkerError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, WorkerError) else "Internal"
        words = " ".join(f"{reason}: {error}".split())
        print(words, file=sys.stderr, flush=True)
        if termination_log.exists():
            termination_log.write_text(words)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
