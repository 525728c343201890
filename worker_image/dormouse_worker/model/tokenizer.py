"""Turns a tokenizer of an older format into a tokenizer.json, once: the front reads nothing else.

The result lies in a cache of this user's own, under a digest of the files that it was made from.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.private_folder import require_private

logger = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
# Without one of these transformers would make up an empty tokenizer instead of failing.
SOURCES = ("vocab.*", "*.model", "*.tiktoken")
ACCOMPANYING = ("merges.txt", "config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def find_sources(model_path: Path) -> list[Path]:
    """Return the files that a tokenizer can be made from, in order of name; [] if there is none."""
    return sorted(file for pattern in SOURCES for file in model_path.glob(pattern))


def convert(model_path: Path, cache: Path) -> Path | None:
    """Return a tokenizer.json for this model, made if it is not in the cache; None if the model has no tokenizer.

    Raises ModelInvalid if the files cannot be converted, OSError if the cache cannot be used.
    """
    sources = find_sources(model_path)
    if not sources:
        return None
    accompanying = [model_path / name for name in ACCOMPANYING if (model_path / name).is_file()]
    target = cache / _digest([*sources, *accompanying]) / TOKENIZER_FILE
    require_private(cache)
    if not target.is_file():
        logger.info("converting the tokenizer of %s to %s", model_path, target)
        _write(model_path, target)
    return target


def _write(model_path: Path, target: Path) -> None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(  # nosec B615  # of a directory
            model_path, local_files_only=True, trust_remote_code=False
        )
        text: str = tokenizer.backend_tokenizer.to_str()
    except Exception as error:  # foreign code over a stranger's files
        raise ModelInvalid(f"{model_path}: its tokenizer cannot be converted to {TOKENIZER_FILE}: {error}") from error
    target.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(target)  # whole or not at all, whoever else converts at this moment


def _digest(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        total.update(f"{file.name} {len(content)}\n".encode() + content)
    return total.hexdigest()
