"""xgrammar in a process of its own: `PEER_PYTHON -m bench.xgrammar_peer MODEL_DIR VOCAB_SIZE END_ID…`, see `helpers`.

Runs under the Python of the peer's environment, which has what vLLM uses; of ours it imports the protocol alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import xgrammar  # type: ignore[import-not-found]
from transformers import AutoTokenizer

from bench.helpers import answer_questions
from bench.token_sets import Masks, Walk, Walks


class Peer:
    """Follows walks."""

    def __init__(self, model_dir: str, vocab_size: int, end_ids: Sequence[int]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=[*end_ids])
        self._compiler: Any = xgrammar.GrammarCompiler(info, max_threads=1)
        self._mask: Any = xgrammar.allocate_token_bitmask(1, vocab_size)

    def __repr__(self) -> str:
        return f"Peer({self._compiler!r})"

    def follow(self, asked: Walks) -> Masks:
        """Return the masks of each walk."""
        return Masks(tuple(tuple(self._masks(walk)) for walk in asked.walks))

    def _masks(self, walk: Walk) -> Iterator[bytes]:
        compiled = self._compiler.compile_json_schema(
            json.dumps(walk.schema), any_whitespace=False, separators=(",", ":"), strict_mode=True
        )
        matcher = xgrammar.GrammarMatcher(compiled)
        for token in (*walk.tokens, None):
            xgrammar.reset_token_bitmask(self._mask)
            matcher.fill_next_token_bitmask(self._mask)
            yield self._mask[0].numpy().tobytes()
            if token is not None and not matcher.accept_token(token):
                return


def main() -> None:
    """Load, then answer lines."""
    model_dir, vocab_size, *end_ids = sys.argv[1:]
    answer_questions(Walks, Peer(model_dir, int(vocab_size), [*map(int, end_ids)]).follow)


if __name__ == "__main__":
    main()
