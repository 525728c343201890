"""The tasks that a model can have: which call answers each, and how a call of another task is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

GENERATE, EMBED, CLASSIFY, SCORE = "generate", "embed", "classify", "score"
Task = Literal["generate", "embed", "classify", "score"]
HEADS: frozenset[str] = frozenset({CLASSIFY, SCORE})  # a sequence classifier's head makes numbers of each text
POOLING: frozenset[str] = HEADS | {EMBED}  # a pass gives vectors: no tokens are chosen, and no cache is kept

_DOORS: Mapping[str, str] = MappingProxyType(
    {
        GENERATE: "Generate (/v1/chat/completions, /v1/completions)",
        EMBED: "Embed (/v1/embeddings)",
        CLASSIFY: "Classify (/classify)",
        SCORE: "Score (/v1/rerank, /v1/score)",
    }
)


def wrong_task(call: str, task: str) -> str:
    """Return why a model of this task does not answer a call, and which one it answers."""
    return f"the model's task is {task}, which {call} does not do; call {_DOORS[task]}"
