"""A model's name by what it is: equal digests load equal models. Reads headers only; imports no torch."""

from __future__ import annotations

import hashlib

from dormouse_worker.files.gguf.header import read_raw_gguf_header
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.safetensors_files import read_raw_header

DIGESTED = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "added_tokens.json"),
)


def digest_model(files: ModelFiles) -> str:
    """Return the SHA-256 over configuration, tokenizer and each weight file's name, size and header."""
    total = hashlib.sha256()
    for name in DIGESTED:
        content = (files.path / name).read_bytes() if (files.path / name).is_file() else b""
        total.update(f"{name} {len(content)}\n".encode() + content)
    read_header = read_raw_header if files.gguf is None else read_raw_gguf_header
    for file in sorted(files.weight_files):
        total.update(f"{file.name} {file.stat().st_size}\n".encode() + read_header(file))
    return total.hexdigest()
