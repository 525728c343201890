"""Drafts change nothing but the time: a rank that has them says what one without them says."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results import AtLeast, Row
from dormouse_worker.common.ipc import StepOutputs
from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.asked_rank import ON_CPU, Said, asked_rank, count_equal, gather
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import WIDER
from tests.gpu.sampling_wishes import sampling_wishes

WRONG_EVERY = 5  # token of a prediction
FEW = ("ngram", "its own model")


def run(kit: Kit) -> list[Row]:
    """Compare ways of drafting with none; predictions are right but now and then."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        target = write_tiny_model(root / "target", **WIDER)
        same = Path(shutil.copytree(target, root / "same"))
        other = write_tiny_model(root / "other", seed=1, **WIDER)
        with asked_rank(target, ON_CPU) as rank:
            truth = rank.ask(*sampling_wishes())
        ways: Mapping[str, dict[str, Any]] = {
            "ngram": {"speculation_method": "ngram"},
            "suffix": {"speculation_method": "suffix"},
            "its own model": {"speculation_method": "draft", "speculation_model": str(same)},
            "another model": {"speculation_method": "draft", "speculation_model": str(other)},
        }
        return [
            row
            for name, settings in ways.items()
            if kit.is_gpu or name in FEW
            for row in _compare(kit, target, (name, settings), truth)
        ]


def _compare(kit: Kit, target: Path, way: tuple[str, dict[str, Any]], truth: Sequence[Said]) -> list[Row]:
    name, settings = way
    predicted = [
        [(token + (place % WRONG_EVERY == WRONG_EVERY - 1)) % 250 for place, token in enumerate(said.token_ids)]
        for said in truth
    ]
    wishes = sampling_wishes(() if "speculation_model" in settings else predicted)
    with asked_rank(target, kit.rank_settings, max_num_seqs=64, **settings) as rank:
        draft_always(rank.engine)
        told = rank.run(*wishes)
        rank.sleep_and_wake(1)
        told_awake = rank.run(*wishes)
    equal = sum(count_equal(gather(messages, len(wishes)), truth) for messages in (told, told_awake))
    least = 0 if name == "another model" else 10  # grammars force one
    return [
        Row(f"drafts, {name}: answers of none", equal, "", goal=AtLeast(2 * len(truth))),
        Row(f"drafts, {name}: right ones", _num_right(told_awake), "tokens", goal=AtLeast(least)),
    ]


def _num_right(messages: Sequence[StepOutputs]) -> int:
    counts = [message.drafts for message in messages if message.drafts is not None]
    return sum(sum(each.num_accepted_tokens_per_pos) for each in counts)
