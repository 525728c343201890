"""Models with adapters that peft made, what peft says with each, and how an engine is asked for the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from dormouse_worker.model.attention.interface import AttentionBackend
from dormouse_worker.model.loader import LoadedModel
from tests.peft_kit import greedy_tokens
from tests.worker.engine.engine_kit import finish
from tests.worker.model.adapters.loading import load_adaptable
from tests.worker.model.test_parity import MAX_TOKENS, make_engine

NUM_SLOTS = 2


@dataclass(frozen=True)
class AdaptedCase:
    """A model with adapters, what can be asked of it, and what each request shall say."""

    model: LoadedModel
    backend: AttentionBackend
    infos: dict[str, AdapterInfo]
    folders: dict[str, Path]
    prompts: dict[str, list[int]]
    expected: dict[tuple[str, str], list[int]]  # adapter ("" = the base) and prompt -> tokens

    def engine(self, **settings):
        """Return an engine that knows the adapters; two fit at once."""
        slots = AdapterSlots(NUM_SLOTS)
        slots.note(self.model.adapters.infos, {})
        return make_engine(self.model, backend=self.backend, adapters=slots, **settings)

    def add(self, engine, key, request_id, output_token_ids=(), **sampling):
        """Ask for (adapter, prompt); return why the engine refuses, or None."""
        adapter, prompt = key
        message = make_add(request_id, self.prompts[prompt], **{"max_tokens": MAX_TOKENS, **sampling})
        digest = self.infos[adapter].digest if adapter else ""
        return engine.add(msgspec.structs.replace(message, adapter=digest, output_token_ids=list(output_token_ids)))

    def resume(self, engine, key):
        """Ask for the rest of (adapter, prompt) behind each number of its tokens at once; return what is said."""
        whole = self.expected[key]
        for cut in range(len(whole)):
            assert self.add(engine, key, f"{cut}", whole[:cut]) is None
        told = finish(engine, {f"{cut}": [] for cut in range(len(whole))})
        return [whole[: int(cut)] + rest for cut, rest in told.items()]

    def ask_twice(self, engine):
        """Ask for everything at once, and again when all is said; return what each round says."""
        rounds = []
        for number in range(2):
            names = {f"{'/'.join(key)}/{number}": key for key in self.expected}
            for name, key in names.items():
                assert self.add(engine, key, name) is None
            told = finish(engine, {name: [] for name in names})
            rounds.append({names[name]: tokens for name, tokens in told.items()})
        return rounds


def peft_says(directory, folders, prompts):
    """Return what peft says to each prompt without an adapter and with each, greedily."""
    return {
        (name, prompt): greedy_tokens(directory, folders.get(name), ids, MAX_TOKENS, ignore_eos=True)
        for name in ("", *folders)
        for prompt, ids in prompts.items()
    }


def make_case(directory, path, prompts, folders, expected, *, max_rank):
    """Load a model on a path, see `load_adaptable`, with the adapters of these folders."""
    model, backend = load_adaptable(directory, path, num_slots=NUM_SLOTS, max_rank=max_rank, num_copies=len(folders))
    infos = {name: model.adapters.add(folder) for name, folder in folders.items()}
    return AdaptedCase(model, backend, infos, folders, prompts, expected)


def each_of(paths):
    """Return the parameters (architecture, path) of a test; a table tells which are slow."""
    marked = [pytest.param(*key, marks=[pytest.mark.slow] * is_slow) for key, is_slow in paths.items()]
    return pytest.mark.parametrize(("architecture", "path"), marked)
