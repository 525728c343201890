"""Whisper's real-time factor, base shape, one stream: `python -m bench.speech`.

A window of 30 seconds from its samples to 96 greedy tokens with times: features, the encoder, the decoder. Random
weights, whose answers never end by themselves. Ours in float32 and with weights of 8 bits, beside openai-whisper in
float32 and faster-whisper (CTranslate2) with weights of 8 bits, in turns, as many threads for each; the median of each
counts. The peers are those of `make bench-speech-peers`, without which nothing is measured.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from rich.console import Console

from bench.helpers import Helper, environment
from bench.limits import use_threads
from bench.options import Options, main
from bench.results import RatioAtMost, Row
from bench.speech_ask import Hear, Heard
from bench.speech_env import MAKE, PEERS
from bench.speech_model import END, PROMPT, write_model
from bench.tasks import Side
from dormouse_worker.common.ipc import StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddWindow, WindowParams
from dormouse_worker.sounds.features import log_mels, scale

SECONDS, RATE_HZ, NUM_MELS, NUM_TOKENS = 30, 16_000, 80, 96
WINDOW = "window"
FASTER, ORIGINAL = "faster-whisper", "openai-whisper"
PLAIN, ROUNDED = "float32", "int8"
Way = Callable[[Hear], Heard]


class Ours:
    """Our engine, and the features that its front makes."""

    def __init__(self, model: Path, folder: Path, quantization: Literal["none", "int8"], options: Options) -> None:
        self._folder, self._names = folder, count()
        self._side = Side(
            EngineSettings(
                model=str(model),
                dtype="float32",
                quantization=quantization,
                task="transcribe",
                threads=options.threads,
                max_num_seqs=1,
                image_dir=str(folder),
            )
        )

    def hear(self, asked: Hear) -> Heard:
        """Return tokens and seconds."""
        samples = np.fromfile(asked.samples, np.float32)
        begun_s = time.perf_counter()
        features = np.concatenate([*log_mels(samples, NUM_MELS)])
        scale(features, features.max())
        features.tofile(self._folder / WINDOW)
        params = WindowParams(max_tokens=asked.num_tokens, bytes_per_token=2, temperatures=(0.0,))
        self._side.seconds(AddWindow(str(next(self._names)), WINDOW, list(asked.prompt), params))
        outputs = [sent.windows for sent in self._side.sent if isinstance(sent, StepOutputs)]
        return Heard(
            [token for windows in outputs for said in windows for token in said.token_ids],
            time.perf_counter() - begun_s,
        )


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows; none without the peers."""
    if not PEERS.is_made:
        console.print(f"  nobody is there to compare with: {MAKE} makes the environment")
        return []
    use_threads(options)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        folder = Path(scratch)
        model, asked = write_model(folder / "model"), _asked(folder)
        ours = {PLAIN: Ours(model, folder, "none", options), ROUNDED: Ours(model, folder, "int8", options)}
        peers = {name: opened.enter_context(_helper(name, model, options)) for name in (ORIGINAL, FASTER)}
        ways: dict[str, Way] = {name: side.hear for name, side in ours.items()}
        ways |= {name: partial(_ask, peer) for name, peer in peers.items()}
        factors = _race(ways, asked, options, console)
    return list(_rows(factors, options))


def _num_threads(options: Options) -> int:
    return options.threads or len(os.sched_getaffinity(0))


def _helper(name: str, model: Path, options: Options) -> Helper:
    threads = _num_threads(options)
    return Helper(
        "bench.speech_peer", name, str(model), str(threads), python=PEERS.python, env=environment(), rests=True
    )


def _ask(peer: Helper, asked: Hear) -> Heard:
    return peer.ask(asked, Heard)


def _asked(folder: Path) -> Hear:
    """Write noise, and what is asked of it."""
    samples = np.random.default_rng(0).standard_normal(SECONDS * RATE_HZ).astype(np.float32) * np.float32(0.1)
    samples.tofile(folder / "samples")
    said = json.loads((folder / "model" / "generation_config.json").read_text("utf-8"))
    assert END in said["suppress_tokens"], "answers have as many tokens as are asked for"
    return Hear(str(folder / "samples"), PROMPT, tuple(said["suppress_tokens"]), NUM_TOKENS)


def _race(ways: Mapping[str, Way], asked: Hear, options: Options, console: Console) -> dict[str, float]:
    """Return each way's median seconds for a second of sound; the first turn warms up."""
    laps: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.reps + 1):
        heard = {name: way(asked) for name, way in ways.items()}
        for name, said in heard.items():
            if len(said.tokens) != NUM_TOKENS:
                raise RuntimeError(f"{name} said {len(said.tokens)} tokens of {NUM_TOKENS}")
            if number:
                laps[name].append(said.seconds / SECONDS)
        same = {name: _common(said.tokens, heard[ORIGINAL].tokens) for name, said in heard.items()}
        seconds = ", ".join(f"{name} {said.seconds:.3f} s" for name, said in heard.items())
        console.print(f"  {seconds}; first tokens as {ORIGINAL}: {same}", highlight=False)
    return {name: median(found) for name, found in laps.items()}


def _common(ours: list[int], theirs: list[int]) -> int:
    """Return how many tokens are the same from the first on."""
    return next((place for place, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), len(ours))


def _rows(factors: Mapping[str, float], options: Options) -> Iterator[Row]:
    what = f"Whisper, base-shaped, a window of {SECONDS} s and {NUM_TOKENS} tokens, one stream"
    for peer, kind, goal in ((ORIGINAL, PLAIN, RatioAtMost(0.5)), (FASTER, ROUNDED, RatioAtMost(1))):
        for ours in (PLAIN, ROUNDED):
            words = f"{what}, {ours} beside {peer} in {kind} ({_num_threads(options)} threads, {_processor()})"
            yield Row(words, factors[ours], "s/s", factors[peer], goal)


def _processor() -> str:
    """Return how wide this machine's vectors are, which is what decides here."""
    words = Path("/proc/cpuinfo").read_text("utf-8").split()
    return "AVX-512" if "avx512f" in words else "AVX2" if "avx2" in words else "no AVX2"


if __name__ == "__main__":
    main("speech", __doc__, measure)
