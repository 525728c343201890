"""Environments beside the one that tests and product use: of what is measured, or tried, and never shipped.

Each has locks of its own and lies in DORMOUSE_CACHE/KIND/NAME-DIGEST, where the digest is that of its locks. Making
one that is there does nothing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tools.bootstrap import COMPLETE, ROOT, cache_root, is_complete, remove_siblings, run, say

UV = ROOT / ".venv" / "bin" / "uv"


@dataclass(frozen=True, slots=True)
class SideEnvironment:
    """What one environment is made of."""

    kind: str  # its folder of DORMOUSE_CACHE, in which nothing else lies
    name: str
    owner: str  # as people read it: "vLLM's", …
    locks: tuple[Path, ...]  # of Python packages the first; others change the digest only
    needed_bytes: int  # when it is installed, and what is unpacked meanwhile

    @property
    def folder(self) -> Path:
        """Where it lies: this changes with the locks and with the interpreter's ABI."""
        digest = sha256(b"".join(lock.read_bytes() for lock in self.locks)).hexdigest()[:12]
        return cache_root() / self.kind / f"{self.name}-cp{sys.version_info.major}{sys.version_info.minor}-{digest}"

    @property
    def is_made(self) -> bool:
        """Return whether it was finished."""
        return is_complete(self.folder)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def make(self, announcement: str, finish: Callable[[Path], None]) -> Path:
        """Make it unless it is there; `finish` adds what is no Python package. Stops with a sentence if that fails."""
        final = self.folder
        if is_complete(final):
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        self.check_free_space(final.parent)
        started_s = time.monotonic()
        say(announcement)
        shutil.rmtree(final, ignore_errors=True)
        try:
            self._install(final)
            finish(final)
        except BaseException:
            shutil.rmtree(final, ignore_errors=True)
            raise
        (final / COMPLETE).touch()
        remove_siblings(final)
        say(f"{self.owner} environment ready in {time.monotonic() - started_s:.0f} s: {final}")
        return final

    def check_free_space(
        self, folder: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    ) -> None:
        """Stop with both numbers if the disk cannot hold the environment."""
        free = free_bytes(folder)
        if free < self.needed_bytes:
            sys.exit(
                f"[setup] {folder} has {free / 2**30:.1f} GiB free and {self.owner} environment needs "
                f"{self.needed_bytes / 2**30:.0f} GiB: free some space, or set DORMOUSE_CACHE to another disk"
            )

    def _install(self, final: Path) -> None:
        """Install exactly what is locked: no requirement is asked again, and the machine's settings are left alone."""
        run(sys.executable, "-m", "venv", "--without-pip", final)
        cache = final / "packages"  # beside the environment: what is unpacked there is linked, not copied
        uv: list[str | Path] = [UV, "pip", "install", "--quiet", "--cache-dir", cache, "--compile-bytecode"]
        run(*uv, "--python", final / "bin" / "python", "--no-deps", "--require-hashes", "-r", self.locks[0])
        shutil.rmtree(cache)
