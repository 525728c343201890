"""Models that do not go on with a text: vectors, classes, sound, sources that an encoder reads, images. As the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from bench.results import AtLeast, AtMost, Row
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.sides import joined
from dormouse_worker.common.task_messages import AddPooling, AddWindow, WindowParams
from dormouse_worker.files.speech_files import read_speech
from dormouse_worker.model.testing import BOS, write_tiny_model
from dormouse_worker.model.testing_pooling import write_tiny_classifier, write_tiny_encoder
from dormouse_worker.model.testing_sides import write_two_sided
from dormouse_worker.model.testing_speech import write_whisper
from dormouse_worker.model.testing_vision import build_prompt, draw_picture, write_tiny_vision_model
from tests.gpu.asked_rank import ON_CPU, SETTINGS, AskedRank, asked_rank, count_equal, wish
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import PROMPTS, WIDER

VECTOR_TOLERANCE = 1e-4
TWO_SIDED = ("t5", "bart")
FAMILIES: Mapping[str, Mapping[str, int]] = MappingProxyType(  # wider, as far as that is possible: kernels begin at 16
    {"llava": WIDER, "qwen2_5_vl": {}, "gemma3": WIDER}
)
REFUSED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "speculation_method is eagle": {"speculation_method": "eagle", "speculation_model": "head"},
        "kept (kv_store_dir) on 'cpu' alone": {"kv_store_dir": "somewhere"},
    }
)
ANY_ON_CPU: Mapping[str, Any] = MappingProxyType({**ON_CPU, "attention_backend": "auto"})
PLACES = 3  # of windows
NUM_TOKENS = 10
TEXTS = [[(7 * i * i + i * n) % 250 + 3 for i in range(length)] for n, length in enumerate((3, 1, 12, 12, 40))]


def run(kit: Kit) -> list[Row]:
    """Compare one task after the other; a few kinds of each where there is no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        parts = _vectors(kit, root), _two_sided(kit, root), _sound(kit, root), _images(kit, root), _refused(root)
        return [row for part in parts for row in part]


def _by_task(kit: Kit) -> Mapping[str, Any]:
    """Return the settings of a rank whose worker the task decides; without a GPU that is the CPU's."""
    return {**kit.rank_settings, "worker_cls": "auto"}


def _vectors(kit: Kit, root: Path) -> Iterator[Row]:
    written = {"bert": write_tiny_encoder(root / "bert", modules=("mean_tokens", "dense", "normalize"))}
    if kit.is_gpu:
        written["modernbert"] = write_tiny_encoder(root / "modernbert", "modernbert", modules=("cls_token",))
        written["qwen3"] = write_tiny_encoder(root / "qwen3", "qwen3", modules=("lasttoken",))
    written["a classifier"] = write_tiny_classifier(root / "classifier")
    for name, directory in written.items():
        with asked_rank(directory, {}, (0, 0)) as rank:
            truth = _pool(rank)
        with asked_rank(directory, _by_task(kit), (0, 0)) as rank:
            found = [_pool(rank)]
            for level in (1, 2):
                rank.sleep_and_wake(level)
                found.append(_pool(rank))
        worst = max(float(np.abs(vectors - truth).max()) for vectors in found)
        yield Row(f"tasks, {name}: off the CPU's vectors", worst, "", goal=AtMost(VECTOR_TOLERANCE))


def _pool(rank: AskedRank) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    (output,) = (output for message in rank.run(AddPooling("", TEXTS)) for output in message.pooled)
    return np.stack([np.frombuffer(vector, "<f4") for vector in output.vectors])


def _two_sided(kit: Kit, root: Path) -> Iterator[Row]:
    """Ask models whose answers all begin with BOS."""
    random = {"temperature": 0.8, "seed": 3}
    asked = [_source(prompt, how) for how in ({"repetition_penalty": 1.5}, random) for prompt in PROMPTS]
    for name in TWO_SIDED if kit.is_gpu else TWO_SIDED[:1]:
        directory = write_two_sided(root / name, name, generation={"encoder_no_repeat_ngram_size": 0})
        with asked_rank(directory, ANY_ON_CPU) as rank:
            truth = rank.ask(*asked)
        with asked_rank(directory, kit.rank_settings) as rank:
            equal = count_equal(rank.ask(*asked), truth)
            rank.sleep_and_wake(1)
            equal += count_equal(rank.ask(*asked), truth)
        yield Row(f"tasks, {name}: answers of the CPU", equal, "", goal=AtLeast(2 * len(asked)))


def _source(prompt: Sequence[int], how: Mapping[str, Any]) -> AddRequest:
    asked = wish(joined(prompt, (BOS,), SETTINGS["block_size"]), max_tokens=NUM_TOKENS, **how)
    return msgspec.structs.replace(asked, num_source_tokens=len(prompt))


def _sound(kit: Kit, root: Path) -> Iterator[Row]:
    """Ask for windows of noise, one of them hotter, and for the language of one."""
    directory = write_whisper(root / "whisper")
    spec = read_speech(directory)
    draw = np.random.default_rng(0)
    windows = []
    for number, temperature in enumerate((0.0, 0.0, 0.7, 0.0)):
        features = draw.standard_normal((spec.window_frames, spec.num_mels)).astype(np.float32)
        features.tofile(root / f"window{number}")
        prompt = [spec.start, spec.languages["en"], spec.tasks["transcribe"]]
        how = WindowParams(
            max_tokens=spec.max_target_positions - len(prompt),
            bytes_per_token=spec.bytes_per_token,
            temperatures=(temperature,),
            seed=number,
        )
        languages = [*spec.languages.values()] if number == 1 else []
        windows.append(AddWindow("", f"window{number}", prompt, how, 0, languages))
    settings = {"max_num_seqs": PLACES, "image_dir": str(root)}
    with asked_rank(directory, {}, (PLACES, 0), **settings) as rank:
        truth = _hear(rank, windows)
    with asked_rank(directory, _by_task(kit), (PLACES, 0), **settings) as rank:
        heard = _hear(rank, windows)
        rank.sleep_and_wake(2)
        again = _hear(rank, windows)
    equal = sum(one == other for found in (heard, again) for one, other in zip(found, truth, strict=True))
    yield Row("tasks, whisper: windows as the CPU hears them", equal, "", goal=AtLeast(2 * len(windows)))


def _hear(rank: AskedRank, windows: Sequence[AddWindow]) -> list[tuple[list[int], int]]:
    outputs = [output for message in rank.run(*windows) for output in message.windows]
    assert all(output.token_ids for output in outputs), "noise is heard"
    return [(one.token_ids, one.language_id) for one in sorted(outputs, key=lambda output: output.request_id)]


def _images(kit: Kit, root: Path) -> Iterator[Row]:
    for name, text in islice(FAMILIES.items(), None if kit.is_gpu else 1):
        directory = write_tiny_vision_model(root / name, name, **text)
        asked = []
        for seed in (1, 2):
            picture = draw_picture(name, seed)
            for parts in ([[5, 6], picture, [9, 8, 7]], [[4], picture, [3], draw_picture(name, seed + 2), [2]]):
                tokens, images = build_prompt(parts, root)
                asked.append(msgspec.structs.replace(wish(tokens, max_tokens=NUM_TOKENS), images=images))
        asked.append(wish([7, 8, 9], max_tokens=NUM_TOKENS))
        settings = {"image_dir": str(root)}
        with asked_rank(directory, ANY_ON_CPU, **settings) as rank:
            truth = rank.ask(*asked)
        with asked_rank(directory, kit.rank_settings, **settings) as rank:
            equal = count_equal(rank.ask(*asked), truth)
            rank.sleep_and_wake(2)
            equal += count_equal(rank.ask(*asked), truth)
        yield Row(f"tasks, {name}: answers of the CPU", equal, "", goal=AtLeast(2 * len(asked)))


def _refused(root: Path) -> Iterator[Row]:
    """Ask a GPU for what is not computed there; no device is opened for that."""
    directory = write_tiny_model(root / "llama")
    for words, settings in REFUSED.items():
        try:
            with asked_rank(directory, {"device": "cuda"}, **settings):
                said = "it starts"
        except RuntimeError as error:
            said = str(error)
        if words not in said:
            print(f"    {settings}: {said}", flush=True)
        yield Row(f"tasks: refused as {words}", float(words in said), "", goal=AtLeast(1))
