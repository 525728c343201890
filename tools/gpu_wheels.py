"""Downloads what a machine with a GPU lacks for `tests/gpu`: `make gpu-wheels`, then carry build/gpu-wheels there.

Such a machine has no network, but an image with CUDA's Python packages, of whatever versions. What it lacks comes in
the versions and with the hashes of the lock file, for its Python and not for this one.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tools.bootstrap import LOCK_FILE, ROOT

FOLDER = ROOT / "build" / "gpu-wheels"
PYTHON = "3.12"
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31)))
MAX_BYTES = 60_000_000

# By the names under which they are imported.
PRESENT = frozenset(
    {"cuda", "google", "grpc", "jinja2", "numpy", "prometheus_client", "rich", "safetensors", "tokenizers", "torch"}
    | {"transformers", "triton"}
)
MISSING = frozenset({"llguidance", "msgspec"})  # each is also its distribution's name

OURS = frozenset({"bench", "dormouse_api", "dormouse_worker", "tests", "tools"})
WORKER = ROOT / "worker_image" / "dormouse_worker"
WORKER_PARTS = ("engine", "executor", "model")
# of the worker's other files
SERVES_ONLY = frozenset(
    {"__main__.py", "download.py", "engine_process.py", "hub.py", "testing.py", "testing_in_process.py"}
)
SOURCES = ("tests/gpu/*.py", "bench/results.py", "tools/bootstrap.py", "api/dormouse_api/__init__.py")


def main() -> None:
    """Download into FOLDER, in place of what is there. Stops with the numbers if that is too much to carry."""
    if unknown := imported_names() - PRESENT - MISSING:
        sys.exit(f"tests/gpu imports {', '.join(sorted(unknown))}: say in {Path(__file__).name} who has it")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    download(sorted(MISSING), FOLDER, _pip)
    wheels = sorted(FOLDER.glob("*.whl"))
    check(wheels)
    print(*(f"{wheel.relative_to(ROOT)} {wheel.stat().st_size / 1e6:.1f} MB" for wheel in wheels), sep="\n")


def check(wheels: Sequence[Path]) -> None:
    """Stop unless every missing package is there and all of them can be carried."""
    names = {wheel.name.partition("-")[0] for wheel in wheels}
    if names != MISSING:
        sys.exit(f"downloaded {', '.join(sorted(names)) or 'nothing'}; needed {', '.join(sorted(MISSING))}")
    total_bytes = sum(wheel.stat().st_size for wheel in wheels)
    if total_bytes > MAX_BYTES:
        sys.exit(f"the wheels have {total_bytes} bytes; no more than {MAX_BYTES} can be carried")


def download(names: Iterable[str], folder: Path, pip: Callable[[list[str]], None]) -> None:
    """Have the locked versions of these packages downloaded for the machine's Python."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text("\n".join(locked(name, LOCK_FILE.read_text()) for name in names))
        command = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
        pip([*command, *(f"--platform={one}" for one in PLATFORMS), f"--dest={folder}", f"--requirement={wanted}"])


def locked(name: str, lock: str) -> str:
    """Return a package's lines of the lock file, hashes included."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*$", lock, re.MULTILINE)
    if found is None:
        raise ValueError(f"{name} is not in {LOCK_FILE.name}")
    return found[0]


def imported_names() -> set[str]:
    """Return the foreign packages that the programs import, wherever in a file; the front's are not among them."""
    names = {name for path in _sources() for name in _imports(ast.parse(path.read_text("utf-8")))}
    return names - OURS - set(sys.stdlib_module_names)


def _sources() -> Iterator[Path]:
    yield from (path for part in WORKER_PARTS for path in (WORKER / part).rglob("*.py"))
    yield from (path for path in WORKER.glob("*.py") if path.name not in SERVES_ONLY)
    yield from (path for pattern in SOURCES for path in ROOT.glob(pattern) if not path.name.startswith("test_"))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _pip(arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


if __name__ == "__main__":
    main()
