"""Whether two models' tokens are the same: their configurations and tokenizers compared. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, WorkerError
from dormouse_worker.files.json_files import require_object


@contextmanager
def named(model: str) -> Iterator[None]:
    """Say of which of the two models an error is."""
    try:
        yield
    except WorkerError as error:
        raise type(error)(f"speculation_model {model}: {error}") from error


def check_vocabulary(target: Path, draft: Path) -> None:
    """Raise InvalidSettings unless both directories' models have the same tokens; ModelInvalid for unreadable files."""
    sizes = [_vocab_size(require_object(path / "config.json")) for path in (target, draft)]
    if sizes[0] != sizes[1]:
        raise InvalidSettings(f"vocab_size is {sizes[1]}, the model's is {sizes[0]}; a draft model has the same tokens")
    ours, theirs = (_tokens(path / "tokenizer.json") for path in (target, draft))
    if ours and theirs and ours != theirs:
        wrong = min(token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token))
        raise InvalidSettings(
            f"its tokenizer.json has {wrong[:64]!r} as {theirs.get(wrong, 'no token')}, the model's as "
            f"{ours.get(wrong, 'no token')}; a draft model has the same tokens"
        )


def _vocab_size(config: Mapping[str, Any]) -> object:
    """Return what a configuration says, perhaps for its part of text."""
    text = config.get("text_config")
    return config.get("vocab_size", text.get("vocab_size") if isinstance(text, Mapping) else None)


def _tokens(file: Path) -> dict[str, object]:
    """Return each token's id; nothing where there is no such file, or it is of a kind that we do not read."""
    if not file.is_file():
        return {}
    content = require_object(file)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, list):  # Unigram: pairs with scores, in order
        pairs = ((pair[:1], index) for index, pair in enumerate(vocabulary) if isinstance(pair, list))
        vocabulary = {text: index for texts, index in pairs for text in texts if isinstance(text, str)}
    if not isinstance(vocabulary, Mapping):
        return {}
    said = content.get("added_tokens")
    added = [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []
    return {**vocabulary, **{each["content"]: each.get("id") for each in added if isinstance(each.get("content"), str)}}
