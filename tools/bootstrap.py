"""Make the one Python environment that every make target uses, from downloaded and hash-checked wheels.

Owns wheels, venv and kernels in DORMOUSE_CACHE; runs before any dependency exists, so it needs the standard
library only. The images' layers are made from the same wheels (see tools/images), so nothing is downloaded twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

ROOT = Path(__file__).resolve().parent.parent
LOCK_FILE = ROOT / "requirements" / "dev.txt"
KERNELS = ROOT / "worker_image" / "dormouse_worker" / "native" / "build.py"
COMPLETE = ".complete"
UNUSED_S = 14 * 86_400  # so long an environment that no clone asks for is kept
NEEDED_BYTES = 10 * 2**30  # 3 GB of wheels and 6 GB of environment, with some room


def cache_root() -> Path:
    """Return DORMOUSE_CACHE, or its default: /var/cache/dormouse for root, ~/.cache/dormouse for others."""
    if configured := os.environ.get("DORMOUSE_CACHE"):
        return Path(configured)
    return Path("/var/cache/dormouse") if os.geteuid() == 0 else Path.home() / ".cache" / "dormouse"


def lock_key() -> str:
    """Return the name of the environment: it changes with the lock file and with the interpreter's ABI."""
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()[:12]
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{digest}"


def wheels_dir() -> Path:
    """Return the folder of downloaded wheels for this lock file."""
    return cache_root() / "wheels" / lock_key()


def venv_dir() -> Path:
    """Return the folder of the virtual environment for this lock file."""
    return cache_root() / "venv" / lock_key()


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[setup] {text}", flush=True)


@contextmanager
def held(path: Path, holder: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a file; a second run waits and says for whom. The kernel frees it when a run is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            say(f"waiting for {handle.read().strip() or 'another run'}, which holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        handle.truncate()
        handle.write(holder)
        handle.flush()
        yield


def machine_lock(name: str) -> AbstractContextManager[None]:
    """Hold DORMOUSE_CACHE/locks/NAME."""
    return held(cache_root() / "locks" / name, f"pid {os.getpid()} in {ROOT}", say)


def run(*command: str | Path) -> None:
    """Run a command; on failure stop with its output's end, which names what went wrong."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        sys.exit(f"[setup] failed ({done.returncode}): {' '.join(map(str, command))}\n{tail}")


def check_free_space() -> None:
    """Stop with both numbers if the disk cannot hold the wheels and the environment."""
    cache_root().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache_root()).free
    if free < NEEDED_BYTES:
        sys.exit(
            f"[setup] {cache_root()} has {free / 2**30:.1f} GiB free and the Python environment needs "
            f"{NEEDED_BYTES / 2**30:.0f} GiB: free some space, or set DORMOUSE_CACHE to another disk"
        )


def is_complete(venv: Path) -> bool:
    """Return whether an environment was finished: a killed run leaves one without the mark."""
    return (venv / COMPLETE).exists()


def remove_siblings(kept: Path, unused_for_s: float = 0.0) -> None:
    """Remove the folders of other lock files, but those that were used lately: another clone may run from them."""
    for other in kept.parent.iterdir():
        mark = other / COMPLETE
        if other != kept and not (mark.exists() and time.time() - mark.stat().st_mtime < unused_for_s):
            shutil.rmtree(other, ignore_errors=True)


def finish(building: Path, final: Path) -> None:
    """Put a finished folder in its place and remove those of other lock files."""
    building.rename(final)
    remove_siblings(final)


def download_wheels() -> None:
    """Download every locked wheel once; a half-finished download is thrown away.

    The lock is whole, so pip resolves nothing: older ones fail on an extra of a package that has a newer release.
    """
    final = wheels_dir()
    if final.is_dir():
        return
    check_free_space()
    started = time.monotonic()
    say("downloading the locked Python packages (about 3 GB, most of it torch); 1-3 minutes")
    building = final.with_name(final.name + ".partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    run(*pip, "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", building, "-r", LOCK_FILE)
    finish(building, final)
    say(f"packages downloaded in {time.monotonic() - started:.0f} s")


def make_venv() -> None:
    """Install the locked wheels into a fresh environment; uv unpacks in parallel, pip only starts it."""
    final = venv_dir()
    if is_complete(final):
        return
    started = time.monotonic()
    say("installing them into one environment (about 6 GB); 1-2 minutes")
    shutil.rmtree(final, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    offline: list[str | Path] = ["--no-index", "--find-links", wheels_dir()]
    try:
        run(sys.executable, "-m", "venv", final)
        run(final / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *offline, "uv")
        # Compiled once here: where the environment forbids it later, every process would compile torch anew for 8 s.
        uv: list[str | Path] = [final / "bin" / "uv", "pip", "install", "--quiet", "--no-cache", "--compile-bytecode"]
        run(*uv, "--python", final / "bin" / "python", *offline, "--require-hashes", "-r", LOCK_FILE)
    except BaseException:
        shutil.rmtree(final, ignore_errors=True)
        raise
    (final / COMPLETE).touch()
    remove_siblings(final, UNUSED_S)
    say(f"environment ready in {time.monotonic() - started:.0f} s: {final}")


def bare_python() -> Path:
    """Return an interpreter that sees the locked packages and nothing of this clone."""
    return venv_dir() / "bin" / "python"


def make_clone_environment() -> None:
    """Make .venv: the shared packages, and this clone installed as editable, with its commands. Takes a second."""
    own, shared = ROOT / ".venv", venv_dir()
    (shared / COMPLETE).touch()  # it was used now
    mark, wanted = own / COMPLETE, f"{shared}\n{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"
    if not own.is_symlink() and mark.exists() and mark.read_text("utf-8") == wanted:
        return
    if own.is_symlink():
        own.unlink()
    shutil.rmtree(own, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", own)
    [packages] = own.glob("lib/python*/site-packages")
    [shared_packages] = shared.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({str(shared_packages)!r})\n", "utf-8")
    adopt_commands(shared / "bin", own / "bin")
    pip: list[str | Path] = [own / "bin" / "uv", "pip", "install", "--quiet", "--offline", "--no-build-isolation"]
    run(*pip, "--no-deps", "--python", own / "bin" / "python", "--editable", ROOT)
    mark.write_text(wanted, "utf-8")


def adopt_commands(theirs: Path, ours: Path) -> None:
    """Have the commands of one environment in another: scripts with its interpreter, programs as links."""
    foreign, own = f"{theirs / 'python'}".encode(), f"{ours / 'python'}".encode()
    for command in theirs.iterdir():
        target = ours / command.name
        if target.exists() or command.is_symlink() or command.name.startswith(("activate", "Activate", "pip")):
            continue
        text = command.read_bytes()
        if text.startswith(b"#!"):
            target.write_bytes(text.replace(foreign, own))
            target.chmod(0o755)
        else:
            target.symlink_to(command)


def build_kubernetes() -> subprocess.Popen[bytes]:
    """Begin to build the local cluster's programs, which keeps the cores busy while packages are downloaded."""
    return subprocess.Popen([sys.executable, "-m", "localkube", "build"], cwd=ROOT)


def make_environment() -> None:
    """Make what is missing of the Python environment; takes no time when nothing is."""
    if not (is_complete(venv_dir()) and wheels_dir().is_dir()):
        with machine_lock("setup"):
            download_wheels()
            make_venv()
    make_clone_environment()


def build_kernels() -> None:
    """Compile the worker's kernels, unless a clone on this machine did; without a compiler torch computes alone."""
    build = runpy.run_path(str(KERNELS))
    here, shared = build["tree_folder"](), cache_root() / "kernels" / build["digest"]()
    if not (here / build["FILE_NAME"]).is_file() and (shared / build["FILE_NAME"]).is_file():
        copy_whole(shared / build["FILE_NAME"], here)
    done = subprocess.run([sys.executable, KERNELS], capture_output=True, text=True, check=False)
    if done.returncode:
        say(done.stderr.strip())
    elif not (shared / build["FILE_NAME"]).is_file():
        copy_whole(here / build["FILE_NAME"], shared)


def copy_whole(file: Path, folder: Path) -> None:
    """Copy a file into a folder, which is made; nobody sees a part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        shutil.copy2(file, scratch)
        (Path(scratch) / file.name).replace(folder / file.name)


def main() -> None:
    """Make the environment; with --kubernetes build the local cluster's programs beside it."""
    if sys.version_info < (3, 11):  # noqa: UP036  runs before pip could check requires-python
        sys.exit(f"[setup] Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}")
    wants_kubernetes = "--kubernetes" in sys.argv[1:] and "DORMOUSE_CONTEXT" not in os.environ
    build = build_kubernetes() if wants_kubernetes else None
    make_environment()
    build_kernels()
    if build and build.wait():
        sys.exit("[setup] the local cluster's programs could not be built: see above")


if __name__ == "__main__":
    main()
