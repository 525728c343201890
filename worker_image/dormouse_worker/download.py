"""`python -m dormouse_worker.download`: puts a model of a hub into a directory, once, then ends. Imports no torch.

The init container of a worker's pod. A directory that is complete is left alone and the hub is not asked, so that a
restart neither needs the hub nor changes the model under other replicas. Pods that share a volume take turns. While
files come the operator can ask how far it is (`download_door`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from dormouse_api.names import CONTROL_PORT
from dormouse_api.outlets import unhindered_outputs
from dormouse_worker.common.errors import NoSafetensors, WorkerError
from dormouse_worker.files.gguf.repository import choose_gguf
from dormouse_worker.files.hub import IN_A_CLUSTER, ON_A_MACHINE, Hub, HubFile, Remedies, Snapshot
from dormouse_worker.files.hub_folder import (
    Source,
    check_room,
    fetch_missing,
    num_bytes_here,
    read_mark,
    turn,
    write_mark,
)

Telling = Callable[[Callable[[], int], int], AbstractContextManager[None]]  # of how many bytes are here, and of all

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
    control_port: int = CONTROL_PORT  # where an operator, if there is one, hears how far it is; 0 = any free one
    file: str = ""  # of GGUF files the one to take, by its name or quantization; "" = safetensors, or the only one


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> DownloadSettings:
    """Return the settings. Ends the program with code 2 and the flag's name on a bad value."""
    parser = argparse.ArgumentParser(prog="dormouse-download", description=__doc__)
    parser.add_argument("--repo", required=True, help="ORG/NAME on the hub that HF_ENDPOINT names")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--file", default="", help="a GGUF file, by its name or its quantization, such as Q4_K_M")
    parser.add_argument("--directory", required=True, type=Path, help="where the files shall lie")
    parser.add_argument("--control-port", type=int, default=CONTROL_PORT, help="where the operator asks how far it is")
    parser.add_argument("--standalone", action="store_true", help="say remedies of this machine, not of a cluster")
    flags = parser.parse_args(argv)
    token, endpoint = environ.get("HF_TOKEN", ""), environ.get("HF_ENDPOINT") or None
    remedies = ON_A_MACHINE if flags.standalone else IN_A_CLUSTER
    return DownloadSettings(
        flags.repo, flags.revision, flags.directory, token, endpoint, remedies, flags.control_port, flags.file
    )


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


def _to_nobody(num_bytes_here: Callable[[], int], total_bytes: int) -> AbstractContextManager[None]:
    del num_bytes_here, total_bytes
    return nullcontext()


def download(
    source: Source,
    directory: Path,
    name: str,
    remedies: Remedies = IN_A_CLUSTER,
    *,
    gguf: str = "",
    telling: Telling = _to_nobody,
) -> None:
    """Make the directory complete. Raises WorkerError; what has come so far stays and is continued next time."""
    directory.mkdir(parents=True, exist_ok=True)
    with turn(directory):
        if read_mark(directory):
            _say(f"{name} is in {directory} already")
            return
        snapshot = source.look_up()
        files = choose_files(snapshot, name, gguf)
        check_room(directory, files, remedies)
        with telling(partial(num_bytes_here, directory, files), sum(file.num_bytes for file in files)):
            fetch_missing(source, snapshot.commit, files, directory, say=_say)
        write_mark(directory, snapshot.commit, files)
    _say(f"{name} is in {directory}, commit {snapshot.commit}")


def _to_the_operator(port: int, environ: Mapping[str, str]) -> Telling:
    """Return who tells the operator how far it is, nobody where there is none: on a machine without a cluster."""
    if not environ.get("DORMOUSE_OPERATOR_KEY"):
        return _to_nobody

    def tell(num_bytes_here: Callable[[], int], total_bytes: int) -> AbstractContextManager[None]:
        from dormouse_worker.download_door import telling  # gRPC: most starts find all there, and need none

        return telling(port, environ, num_bytes_here, total_bytes, say=_say)

    return tell


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
        telling = _to_the_operator(settings.control_port, os.environ)
        download(source, settings.directory, name, settings.remedies, gguf=settings.file, telling=telling)
    except (WorkerError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, WorkerError) else "Internal"
        words = " ".join(f"{reason}: {error}".split())
        print(words, file=sys.stderr, flush=True)
        if termination_log.exists():
            termination_log.write_text(words)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    with unhindered_outputs():
        main()
