"""Makes the environment in which vLLM runs, and says how it runs best there: `python -m bench.peer_env`.

vLLM is measured, never used: it has an environment of its own (`tools.side_env`), locked by `bench/peers.txt`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tools.bootstrap import ROOT, machine_lock, run, say
from tools.side_env import SideEnvironment

PEER = SideEnvironment(
    kind="peers",
    name="vllm",
    owner="vLLM's",
    locks=(ROOT / "bench" / "peers.txt",),
    needed_bytes=9 * 2**30,  # 6.2 GB when it is installed, and the largest packages while they are unpacked
)
ALLOCATOR = "libtcmalloc_minimal.so.4"
ALLOCATOR_PACKAGE = "libtcmalloc-minimal4"  # Debian's
OPENMP = "libiomp5.so"
FAST = (ALLOCATOR, OPENMP)  # what makes vLLM fast when it is preloaded
KV_CACHE_GIB = 1  # every sequence of a workload has room
MAKE = "make bench-peers"
Environ = Mapping[str, str]


class NoPeer(Exception):
    """Why there is no vLLM to compare with, and what to do: a sentence."""


def peer_dir() -> Path:
    """Return the environment's folder."""
    return PEER.folder


def peer_python() -> Path:
    """Return the environment's interpreter. Raises NoPeer if the environment was not made."""
    if not PEER.is_made:
        raise NoPeer(f"vLLM is not there to compare with: {MAKE} makes its environment (6 GB, some minutes)")
    return PEER.python


def find_peer(console: Console) -> Path | None:
    """Return the same; None if the environment was not made, which is said."""
    try:
        return peer_python()
    except NoPeer as reason:
        console.print(f"  {reason}", style="yellow", highlight=False)
        return None


def peer_variables(cores: Sequence[int], inherited: Environ, *, own_process: bool = False) -> dict[str, str]:
    """Return what vLLM needs to run well on these cores, beside what is inherited.

    With `own_process` its engine core runs in a process of its own; otherwise in the caller's.
    """
    elsewhere = "PYTHONPYCACHEPREFIX"  # its code was compiled where it lies
    ours = {name: text for name, text in inherited.items() if name != elsewhere}
    caches = peer_dir() / "caches"
    return {
        **ours,
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "PYTHONWARNINGS": "ignore",
        "LD_PRELOAD": ":".join(map(str, preloaded(peer_dir()))),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(own_process)),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_AOT_COMPILE": "0",  # what it saves so cannot be loaded again; its older cache can
    }


def preloaded(environment: Path) -> list[Path]:
    """Return where those of FAST lie that are there."""
    lib = environment / "lib"
    folders = (lib, lib / "debian/usr/lib", Path("/usr/lib"), Path("/usr/local/lib"))
    return [path for name in FAST if (path := _first(name, folders))]


def _first(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the first such file in the folders and those right below them."""
    return next((path for folder in folders for path in (*folder.glob(name), *folder.glob(f"*/{name}"))), None)


def make() -> Path:
    """Make the environment unless it is there; return its folder. Stops with a sentence if that fails."""
    words = "downloading and installing vLLM for processors and the torch that it was built for (6 GB); 2-6 minutes"
    return PEER.make(words, _add_allocator)


def _add_allocator(final: Path) -> None:
    """Unpack Debian's tcmalloc into the environment if this machine has none; say so where that cannot be done."""
    if any(path.name == ALLOCATOR for path in preloaded(final)):
        return
    with tempfile.TemporaryDirectory() as scratch:
        fetch = subprocess.run(
            ["apt-get", "download", ALLOCATOR_PACKAGE], cwd=scratch, capture_output=True, check=False
        )
        packages = list(Path(scratch).glob("*.deb"))
        if fetch.returncode or not packages:
            say(f"vLLM will run without tcmalloc: install {ALLOCATOR_PACKAGE}, remove {final} and run {MAKE} again")
            return
        run("dpkg-deb", "-x", packages[0], final / "lib" / "debian")


def main() -> None:
    """Make the environment and print its folder."""
    with machine_lock("peers"):
        folder = make()
    print(folder, *preloaded(folder), sep="\n  ")


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
