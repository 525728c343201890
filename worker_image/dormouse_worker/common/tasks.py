"""The tasks that a model can have: which call answers each, and how a call of another task is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

GENERATE, EMBED, CLASSIFY, SCORE, TRANSCRIBE = "generate", "embed", "classify", "score", "transcribe"
Task = Literal["generate", "embed", "classify", "score", "transcribe"]
HEADS: frozenset[str] = frozenset({CLASSIFY, SCORE})  # a sequence classifier's head makes numbers of each text
POOLING: frozenset[str] = HEADS | {EMBED}  # a pass gives vectors: no tokens are chosen, and no cache is kept
ONE_RANK: frozenset[str] = POOLING | {
    TRANSCRIBE
}  # nothing of what divides or changes a model that makes text goes with it

_DOORS: Mapping[str, str] = MappingProxyType(
    {
        GENERATE: "Generate (/v1/chat/completions, /v1/completions)",
        EMBED: "Embed (/v1/embeddings)",
        CLASSIFY: "Classify (/classify)",
        SCORE: "Score (/v1/rerank, /v1/score)",
        TRANSCRIBE: "Transcribe (/v1/audio/transcriptions, /v1/audio/translations)",
    }
)


def wrong_task(call: str, task: str) -> str:
    """Return why a model of this task does not answer a call, and which one it answers."""
    return f"the model's task is {task}, which {call} does not do; call {_DOORS[task]}"
