"""Which GGUF files of a repository are meant: by a file's name, by its quantization, or the only ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dormouse_worker.common.errors import ModelNotFound
from dormouse_worker.files.gguf.header import SUFFIX
from dormouse_worker.files.gguf.parts import BESIDE, PART

_MOST_NAMED = 20


def choose_gguf(names: Iterable[str], wanted: str, repo: str) -> list[str]:
    """Return the files of one model, several where it is in parts.

    `wanted` is a file's name, or that of a quantization as llama.cpp and vLLM take it, such as Q4_K_M; "" = the only
    one. Raises ModelNotFound, naming what there is, where none is meant, or several are.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and "/" not in name and not name.startswith(BESIDE):
            models.setdefault(_stem(name), []).append(name)
    meant = [stem for stem in models if not wanted or _is_meant(stem, wanted)]
    if len(meant) != 1:
        there = ", ".join(list(models)[:_MOST_NAMED])
        what = f"{len(meant)} GGUF models that are called {wanted}" if wanted else f"{len(models)} GGUF models"
        raise ModelNotFound(f"{repo} holds {what}; name one, as in ORG/NAME:Q4_K_M or ORG/NAME:FILE.gguf, of: {there}")
    return models[meant[0]]


def _stem(name: str) -> str:
    part = PART.fullmatch(name)
    return part["stem"] if part else name.removesuffix(SUFFIX)


def _is_meant(stem: str, wanted: str) -> bool:
    if wanted.endswith(SUFFIX):
        return stem == _stem(wanted)
    return re.search(rf"(^|[-._]){re.escape(wanted)}$", stem, re.IGNORECASE) is not None
