"""A worker that hears, and a sound heard window by window as its front does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import WhisperFeatureExtractor

from dormouse_worker.common.task_messages import AddWindow, WindowOutput, WindowParams
from dormouse_worker.engine.speech.engine import SpeechEngine, SpeechLimits
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.files.speech_files import read_speech
from dormouse_worker.front.speech.segments import Segment, Span, cut
from dormouse_worker.model.testing_speech import RATE_HZ

PLACES = 3
Sound = npt.NDArray[np.float32]


def start(executor: SingleProcessExecutor) -> SingleProcessExecutor:
    executor.init_device()
    executor.load_model()
    assert executor.determine_num_available_blocks() == (PLACES, 0)
    executor.initialize_cache(PLACES, 0)
    return executor


def noise(seconds: float, seed: int = 0) -> Sound:
    return (np.random.default_rng(seed).standard_normal(round(RATE_HZ * seconds)) * 0.1).astype(np.float32)


class Listener:
    """Hears a sound window by window, as the front does."""

    def __init__(self, executor: SingleProcessExecutor, path: Path, folder: Path) -> None:
        self.spec, self.folder = read_speech(path), folder
        self.features = WhisperFeatureExtractor.from_pretrained(path)
        self.engine = SpeechEngine(executor, SpeechLimits(PLACES, self.spec.max_target_positions), time.monotonic)

    def hear(self, sound: Sound, task: str = "transcribe", **params: Any) -> list[list[int]]:
        how = {"truncation": False, "padding": "longest"} if len(sound) > self.features.n_samples else {}
        (frames,) = self.features(sound, sampling_rate=RATE_HZ, return_tensors="np", **how)["input_features"]
        segments: list[Segment] = []
        first = 0
        while first < frames.shape[1]:
            span = Span(first, min(self.spec.window_frames, frames.shape[1] - first))
            output = self.window(frames.T[first : first + span.count], task, **params)
            made = cut([] if output.is_silent else output.token_ids, span, self.spec)
            segments += made.segments
            first += made.num_frames
        return [segment.token_ids for segment in segments]

    def window(self, frames: Sound, task: str, *, languages: Sequence[int] = (), **params: Any) -> WindowOutput:
        window = np.zeros((self.spec.window_frames, self.spec.num_mels), np.float32)
        window[: len(frames)] = frames
        window.tofile(self.folder / "w")
        prompt = [self.spec.start, self.spec.languages["en"], self.spec.tasks[task]]
        most = self.spec.max_target_positions - len(prompt)
        how = WindowParams(max_tokens=most, bytes_per_token=self.spec.bytes_per_token, **params)
        assert self.engine.add(AddWindow("a", "w", prompt, how, 0, list(languages))) is None
        while True:
            outputs = self.engine.step()
            assert not outputs.failed
            if outputs.windows:
                return outputs.windows[0]
