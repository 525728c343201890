"""What Triton puts between itself and CUDA's driver, compiled before it asks: the worker's image has no compiler.

At its first launch Triton compiles one C file of its own package, `driver.c`, the same for all kernels, and keeps what
came out in its cache. `python triton_stub.py FOLDER` compiles it where gcc and Python's headers are, without GPU
or CUDA; `offer` hands it over. Kernels themselves need no compiler beside those that Triton's package holds.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMPILERS = ("gcc", "clang")  # those that Triton looks for
DRIVER = "libcuda.so.1"  # of the machine with the GPU; only its name is needed here


class NotBuilt(Exception):
    """Why there is no stub: a clause that goes after 'because'."""


def file_name(source: Path) -> str:
    """Return the name of the stub of this source, for this Python: one of others is not found by it."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return f"dormouse_triton_{digest}{sysconfig.get_config_var('EXT_SUFFIX')}"


def driver_source() -> Path:
    """Return the file that Triton compiles. Imports no triton. Raises NotBuilt without one."""
    found = find_spec("triton")
    source = Path(found.origin).parent / "backends" / "nvidia" / "driver.c" if found and found.origin else None
    if source is None or not source.is_file():
        raise NotBuilt("triton is not installed")
    return source


def build(folder: Path) -> Path:
    """Compile into a folder and return the stub's path. Raises NotBuilt."""
    source = driver_source()
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NotBuilt(f"there is no compiler ({' or '.join(COMPILERS)})")
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / file_name(source)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, final.name)
        _run([compiler, "-shared", f"-Wl,-soname,{DRIVER}", "-o", f"{scratch}/{DRIVER}", "-x", "c", "/dev/null"])
        includes = [f"-I{source.parent / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
        link = [f"-L{scratch}", "-Wl,--no-as-needed", f"-l:{DRIVER}"]  # needed, though nothing of it is there yet
        flags = ["-O3", "-fPIC", "-Wno-psabi", "-s", *includes]
        _run([compiler, str(source), *flags, "-shared", *link, "-o", str(made)])
        made.replace(final)
    return final


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"the compiler failed: {done.stdout.strip()[-2000:]}")


def offer(folder: Path = HERE) -> None:
    """Let Triton take what was compiled into the folder, unless it finds a compiler. Imports triton."""
    from triton import knobs

    if knobs.build.cc is None and not any(map(shutil.which, COMPILERS)):
        knobs.build.impl = _From(folder)


class _From:
    """Stands where Triton calls its compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, src: str, /, *_: Any) -> str:
        """Return the stub of a source. Raises RuntimeError, as Triton does without a compiler."""
        stub = self._folder / file_name(Path(src))
        if not stub.is_file():
            raise RuntimeError(
                f"Triton needs a C compiler for {name}: there is none, and no {stub.name} beside the worker"
            )
        return str(stub)


def main() -> None:
    """Compile into the folder that is named; print the stub's path."""
    parser = argparse.ArgumentParser(description="Compile Triton's stub and print its path.")
    parser.add_argument("folder", type=Path, help="where to")
    try:
        print(build(parser.parse_args().folder))
    except NotBuilt as error:
        sys.exit(f"Triton's stub is not built: {error}; its kernels need a C compiler at run time")


if __name__ == "__main__":
    main()
