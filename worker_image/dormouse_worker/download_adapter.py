"""`python -m dormouse_worker.download_adapter`: brings an adapter of a hub into the cache, then ends. Imports no torch.

The front starts one for each adapter, and ends it by closing its standard input. Each line of its standard output is
JSON: {"words": how far it is}, and at last {"path": its directory} or {"reason": ..., "message": ...}.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dormouse_api.hub_uri import parse_hub_uri
from dormouse_worker.common.errors import Unauthorized, WorkerError
from dormouse_worker.files.hub import Hub
from dormouse_worker.files.hub_adapter import MAX_BYTES_PER_RANK, REMEDIES, fetch_adapter, home_of
from dormouse_worker.files.private_folder import require_private

EXIT_FAILED = 1
PROGRESS_S = 1.0
_MIB = 2**20


def main(argv: Sequence[str] | None = None) -> None:
    """Download; exit with 1 after a reason."""
    parser = argparse.ArgumentParser(prog="dormouse-download-adapter", description=__doc__)
    parser.add_argument("--uri", required=True, help="hf://ORG/NAME@REVISION on the hub that HF_ENDPOINT names")
    parser.add_argument("--digest", default="", help="what it has to be; empty = anything")
    parser.add_argument("--cache", required=True, type=Path, help="where adapters lie")
    parser.add_argument("--token-file", type=Path, help="holds the hub's token; without it HF_TOKEN does")
    parser.add_argument("--max-rank", required=True, type=int, help="the highest rank that the worker takes")
    flags = parser.parse_args(argv)
    named = flags.token_file
    home = home_of(flags.cache, flags.uri, f"{named.parent.name}/{named.name}" if named else "")
    threading.Thread(target=_accompany, args=(home,), daemon=True).start()
    try:
        path = _fetch(flags, home)
    except (WorkerError, OSError, ValueError) as error:
        reason = error.reason if isinstance(error, WorkerError) else type(error).__name__
        _tell(reason=reason, message=str(error))
        sys.exit(EXIT_FAILED)
    _tell(path=str(path))


def _fetch(flags: argparse.Namespace, home: Path) -> Path:
    named = parse_hub_uri(flags.uri)
    if named is None:
        raise ValueError(f"{flags.uri[:200]!r} is none of hf://ORG/NAME@REVISION")
    most = (flags.max_rank + 1) * MAX_BYTES_PER_RANK
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # whatever the hub sends in the end
    require_private(flags.cache, "--lora-cache")
    token, endpoint = _token(flags.token_file), os.environ.get("HF_ENDPOINT") or None
    hub = Hub(named.repo, named.revision, token=token, endpoint=endpoint, remedies=REMEDIES)
    return fetch_adapter(hub, flags.uri, home, digest=flags.digest, max_rank=flags.max_rank, say=lambda _: None)


def _token(file: Path | None) -> str:
    if file is None:
        return os.environ.get("HF_TOKEN", "")
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise Unauthorized(
            f"the token {file.parent.name}/{file.name} cannot be read ({error}); {REMEDIES.token}"
        ) from error


def _accompany(home: Path) -> None:
    """Say how much is here, and end when nobody listens any more."""
    before = -1
    while not select.select([sys.stdin], [], [], PROGRESS_S)[0]:
        here = sum(map(_size, home.glob("*/.*.partial"))) // _MIB
        if here != before and here:
            _tell(words=f"{here} MiB are fetched")
        before = here
    os._exit(EXIT_FAILED)


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except OSError:  # it is whole now
        return 0


def _tell(**words: str) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
