"""What computes passes over windows of sound, as the engine sees it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dormouse_worker.engine.speech.batch import SpeechBatch, SpeechOutput


@runtime_checkable
class SpeechExecutor(Protocol):
    """Runs passes over windows of sound."""

    def execute_speech(self, batch: SpeechBatch) -> SpeechOutput:
        """Encode, then compute a token of each row, in order. Errors are those of `execute_model`."""
