"""Compiles the kernels: `python build.py [FOLDER]`, some seconds with g++. Standard library only, and no package.

The wheel, the worker's image and a development tree each have the library made by this file:

    wheel, image    beside this file
    working tree    build/native/DIGEST at its root, so that a changed source is never answered by an old library
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
FILE_NAME = "libdormouse_kernels.so"
COMPILERS = ("g++", "c++")
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wno-psabi",
)
UNITS = {  # what is compiled for each variant → its own flags
    "kernels": ("-ffp-contract=fast",),
    "sampling": ("-ffp-contract=off",),  # its results are those of torch's operations, each of which rounds
}
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
VARIANTS = {  # name → what its processors have beyond the machine's least
    "portable": (),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512vnni": (*_AVX512, "-mavx512vnni"),
    "avx512bf16": (*_AVX512, "-mavx512vnni", "-mavx512bf16"),
}


class NotBuilt(Exception):
    """Why there is no library: a clause that goes after 'because'."""


def digest(sources: Path = SOURCES) -> str:
    """Return the name of these sources: 12 hexadecimal digits over their names and contents, and this file's."""
    whole = hashlib.sha256()
    for path in (*sorted(sources.iterdir()), Path(__file__)):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def tree_folder() -> Path:
    """Return where a working tree keeps the library of these sources."""
    return HERE.parents[2] / "build" / "native" / digest()


def candidates() -> tuple[Path, ...]:
    """Return where the library may lie, in the order in which it is looked for."""
    return HERE / FILE_NAME, tree_folder() / FILE_NAME


def build(folder: Path) -> Path:
    """Compile into a folder and return the library's path; what lies there is replaced at the end. Raises NotBuilt."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NotBuilt(f"there is no compiler ({' or '.join(COMPILERS)})")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = _compile(compiler, Path(scratch))
        os.replace(made, folder / FILE_NAME)  # noqa: PTH105  what runs keeps the file that it has loaded
    return folder / FILE_NAME


def ensure() -> Path:
    """Return the library of a working tree, compiled if it is not there. Raises NotBuilt."""
    path = tree_folder() / FILE_NAME
    return path if path.is_file() else build(path.parent)


def _compile(compiler: str, scratch: Path) -> Path:
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    variants = VARIANTS if is_x86 else {"portable": VARIANTS["portable"]}
    commands = {
        f"{unit}_{name}.o": [
            compiler,
            *FLAGS,
            *of_unit,
            *flags,
            f"-DVARIANT={name}",
            "-c",
            str(SOURCES / f"{unit}.cpp"),
        ]
        for unit, of_unit in UNITS.items()
        for name, flags in variants.items()
    }
    commands["library.o"] = [compiler, *FLAGS, f'-DDIGEST="{digest()}"', "-c", str(SOURCES / "library.cpp")]
    _run_together([[*command, "-o", made] for made, command in commands.items()], scratch)
    link = [compiler, "-shared", "-static-libstdc++", "-static-libgcc", "-pthread", "-s", *commands, "-o", FILE_NAME]
    _run_together([link], scratch)
    return scratch / FILE_NAME


def _run_together(commands: list[list[str]], folder: Path) -> None:
    """Run commands at the same time and wait for all. Raises NotBuilt with what the first that failed said."""
    running = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    said = [process.communicate()[0] for process in running]
    for process, output in zip(running, said, strict=True):
        if process.returncode:
            raise NotBuilt(f"the compiler failed: {output.strip()[-2000:]}")


def main() -> None:
    """Compile into the folder that is named, else where this working tree looks; print the library's path."""
    parser = argparse.ArgumentParser(description="Compile the kernels for processors and print the library's path.")
    where = "where to (default: where this working tree looks, unless it is there already)"
    parser.add_argument("folder", nargs="?", type=Path, help=where)
    folder = parser.parse_args().folder
    try:
        print(build(folder) if folder else ensure())
    except NotBuilt as error:
        sys.exit(f"the kernels are not built: {error}; the worker computes with torch alone")


if __name__ == "__main__":
    main()
