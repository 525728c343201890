"""Triton's own way to CUDA's driver without a compiler, by what was compiled before; a stand-in for the driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dormouse_worker.native import triton_stub

START = """
import json, sys
from pathlib import Path
from dormouse_worker.native import triton_stub
triton_stub.offer(Path(sys.argv[1]))
from triton.backends.nvidia.driver import CudaUtils
print(json.dumps(sorted(vars(CudaUtils()))))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stub."""
    return triton_stub.build(tmp_path_factory.mktemp("stub")).parent


@pytest.fixture(scope="module")
def driver(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that has the names that the stub asks for, and does nothing."""
    folder = tmp_path_factory.mktemp("driver")
    [stub] = built.glob("*.so")
    asked = subprocess.run(["nm", "-D", "--undefined-only", stub], capture_output=True, text=True, check=True).stdout
    functions = re.findall(r"\bU (cu\w+)", asked)
    (folder / "cuda.c").write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in functions))
    library = folder / triton_stub.DRIVER
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, folder / "cuda.c"]
    subprocess.run(command, check=True)
    return folder


def start(folder: Path, driver: Path, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Let Triton load its stub in a process that finds no compiler."""
    env = {name: value for name, value in os.environ.items() if name not in {"CC", "PATH"}}
    env |= {"PATH": "/nowhere", "LD_LIBRARY_PATH": str(driver), "TRITON_CACHE_DIR": str(cache), **variables}
    command = [sys.executable, "-c", START, str(folder)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_triton_starts_without_a_compiler(built: Path, driver: Path, tmp_path: Path):
    started = start(built, driver, tmp_path)
    assert started.returncode == 0, started.stderr
    assert {"launch", "load_binary", "build_signature_metadata"} <= set(json.loads(started.stdout))


def test_a_stub_of_other_sources_is_not_taken(driver: Path, tmp_path: Path):
    (tmp_path / "dormouse_triton_0123456789ab.so").touch()
    started = start(tmp_path, driver, tmp_path / "cache")
    assert re.search(
        r"Triton needs a C compiler for cuda_utils: there is none, and no dormouse_triton_", started.stderr
    )


def test_where_a_compiler_is_named_triton_keeps_to_it(built: Path, driver: Path, tmp_path: Path):
    assert "'/nowhere/cc'" in start(built, driver, tmp_path, CC="/nowhere/cc").stderr


def test_another_source_has_another_name_and_the_same_one_the_same(tmp_path: Path):
    one, other = tmp_path / "one.c", tmp_path / "other.c"
    one.write_text("int a;")
    other.write_text("int b;")
    assert triton_stub.file_name(one) == triton_stub.file_name(one) != triton_stub.file_name(other)
    assert triton_stub.file_name(one).endswith(".so")


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(triton_stub.NotBuilt, match=r"there is no compiler \(gcc or clang\)"):
        triton_stub.build(tmp_path)
