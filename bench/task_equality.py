"""How far the answers of tasks beside text are from transformers' in float32; models are small and random.

Vectors: every architecture of `testing_pooling`, five texts in a pass, before and after a sleep at level 2, beside each
text alone. Labels: the same for classifiers. Decisions: the softmax over labels. Speech: the tokens of Whispers of
OpenAI's tiny and base shapes for noise of 30 seconds and of 3 minutes and for silence, which takes minutes.
--parts vectors, labels, decisions or speech measures one of them. Rows go into tasks.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from bench.limits import use_threads
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtLeast, AtMost, Row
from bench.tasks import Side
from dormouse_worker.common.commands import Shutdown, Sleep, WakeUp
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import FrontMessage, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddDecision, AddPooling
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.testing_pooling import (
    ARCHITECTURES,
    reference_hidden,
    reference_logits,
    write_tiny_classifier,
    write_tiny_encoder,
)
from dormouse_worker.model.testing_speech import RATE_HZ, heard, write_whisper
from tests.worker.executor.speech_kit import PLACES, Listener, noise, start
from tests.worker.model.pooling.test_classifiers import HEADS
from tests.worker.model.pooling.test_vectors import TEXTS

PARTS = ("vectors", "labels", "decisions", "speech")
STATE_TOKENS, NUM_QUESTIONS, LABELS = 200, 16, [65, 66, 67, 68]
BESIDE = "beside transformers in float32"
Vector = np.ndarray[Any, np.dtype[np.float64]]
Rows = Callable[[Path, Options, Console], Iterator[Row]]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows of the parts that are wanted."""
    use_threads(options)
    made: Mapping[str, Rows] = dict(zip(PARTS, (_vectors, _labels, _decisions, _speech), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        return [row for part in options.parts or PARTS for row in made[part](Path(folder, part), options, console)]


def _vectors(folder: Path, options: Options, console: Console) -> Iterator[Row]:
    worst: dict[str, float] = {}
    for name in ARCHITECTURES:
        path = write_tiny_encoder(folder / name, name)
        wanted = [reference_hidden(path, text).double().mean(0).numpy() for text in TEXTS]
        found = _pooled(path, options, AddPooling("", TEXTS))
        worst[name] = max(1 - _cosine(*pair) for lap in found for pair in zip(lap, wanted, strict=True))
    console.print(f"  1 - cosine: {worst}", highlight=False)
    what = f"vectors of {len(worst)} architectures, packed, before and after a sleep, {BESIDE}: largest 1 - cosine"
    yield Row(what, max(worst.values()), "", goal=AtMost(1e-6))


def _labels(folder: Path, options: Options, console: Console) -> Iterator[Row]:
    worst: dict[str, float] = {}
    for name, more in HEADS.items():
        path = write_tiny_classifier(folder / name, name, **more)
        wanted = [torch.softmax(reference_logits(path, text).double(), 0).numpy() for text in TEXTS]
        found = _pooled(path, options, AddPooling("", TEXTS))
        worst[name] = max(float(np.abs(a - b).max()) for lap in found for a, b in zip(lap, wanted, strict=True))
    console.print(f"  differences: {worst}", highlight=False)
    what = f"labels of {len(worst)} classifiers, packed, before and after a sleep, {BESIDE}: largest difference"
    yield Row(what, max(worst.values()), "", goal=AtMost(1e-5))


def _pooled(path: Path, options: Options, asked: AddPooling) -> list[list[Vector]]:
    """Return what an engine makes of the texts, before and after a sleep."""
    side = Side(EngineSettings(model=str(path), dtype="float32", threads=options.threads, max_num_batched_tokens=64))
    found = []
    for _ in range(2):
        told = [vector for sent in _answers(side, asked) for output in sent.pooled for vector in output.vectors]
        found.append([np.frombuffer(vector, "<f4").astype(np.float64) for vector in told])
        side.run_command(Sleep(2))
        side.run_command(WakeUp())
    side.run_command(Shutdown())
    return found


def _answers(side: Side, asked: FrontMessage) -> list[StepOutputs]:
    side.seconds(asked)
    return [sent for sent in side.sent if isinstance(sent, StepOutputs)]


def _cosine(one: Vector, other: Vector) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def _decisions(_: Path, options: Options, console: Console) -> Iterator[Row]:
    path, rng = ensure_model("tiny"), np.random.default_rng(0)
    state, *questions = (rng.integers(100, 4000, size).tolist() for size in (STATE_TOKENS, *[20] * NUM_QUESTIONS))
    side = Side(EngineSettings(model=str(path), kv_cache_memory_bytes=1 << 28, threads=options.threads))
    keys = [str(number) for number in range(NUM_QUESTIONS)]
    answers = _answers(side, AddDecision(keys, state, questions, [LABELS] * NUM_QUESTIONS))
    outputs = [output for sent in answers for output in sent.outputs]
    told = {output.request_id: output.logprobs[0].named for output in outputs if output.logprobs}
    side.run_command(Shutdown())
    wanted = _softmax_by_transformers(path, [state + question for question in questions])
    difference = max(
        float((torch.softmax(torch.tensor(told[key]).double(), 0) - one).abs().max())
        for key, one in zip(keys, wanted, strict=True)
    )
    console.print(f"  probabilities of the first question: {wanted[0].tolist()}", highlight=False)
    what = f"probabilities of labels, {NUM_QUESTIONS} questions in a pass, {BESIDE}: largest difference"
    yield Row(what, difference, "", goal=AtMost(1e-5))


@torch.inference_mode()
def _softmax_by_transformers(path: Path, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return [torch.softmax(module(torch.tensor([prompt])).logits[0, -1].double()[LABELS], 0) for prompt in prompts]


def _speech(folder: Path, options: Options, console: Console) -> Iterator[Row]:
    sounds = {"30 s": noise(30), "3 minutes": noise(180), "silence": np.zeros(30 * RATE_HZ, np.float32)}
    equal, names = 0, count()
    for shape in ("tiny", "base"):
        path, scratch = write_whisper(folder / shape, shape), folder / str(next(names))
        scratch.mkdir()
        settings = EngineSettings(
            model=str(path),
            threads=options.threads,
            max_num_seqs=PLACES,
            dtype="float32",
            image_dir=str(scratch),
        )
        executor = SingleProcessExecutor(settings, {}, Host())
        listener = Listener(start(executor), path, scratch)
        for name, sound in sounds.items():
            wanted = heard(path, sound, language="en", task="transcribe", temperature=0.0)
            same = listener.hear(sound) == [one["tokens"].tolist() for one in wanted]
            console.print(f"  {shape}, {name}: {'the same' if same else 'other'} tokens", highlight=False)
            equal += same
        executor.shutdown()
    total = 2 * len(sounds)
    what = "Whisper, tiny- and base-shaped, noise of 30 s and 3 minutes, silence: sounds with transformers' tokens"
    yield Row(what, equal, f"of {total}", goal=AtLeast(total))


if __name__ == "__main__":
    main("task_equality", __doc__, measure)
