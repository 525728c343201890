"""Adapters: the kernels beside torch's formula, and a rank whose answers are those of models with them merged in."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import msgspec
import torch

from bench.results import AtLeast, AtMost, Row
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import AddLora
from dormouse_worker.model.adapters.choose import choose_adder
from dormouse_worker.model.adapters.rows import TorchAdder
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from dormouse_worker.model.testing_adapters import merge_adapter, write_adapter, write_soft_prompt
from tests.gpu.asked_rank import ON_CPU, AskedRank, asked_rank, wish
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import PROMPTS, WIDER
from tests.worker.model.adapters.triton_cases import CASES, MANY, Case, World

MORE_CASES = (
    Case("float16", rank=64, dtype=torch.float16),
    Case("bfloat16, many rows", MANY * 20, rank=32, num_inputs=512, outputs=(512, 128, 128), dtype=torch.bfloat16),
    Case("a large rank", MANY * 3, rank=256, num_inputs=256, outputs=(256,), dtype=torch.bfloat16),
)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
RANKS, ALPHA = (4, 8, 16), 8.0
SOFT_PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING")
NUM_TOKENS = 8


def run(kit: Kit) -> list[Row]:
    """Check the kernels, three adapters in two slots, and what soft prompts bring."""
    return [*_check_kernels(kit), *_check_rank(kit), *_check_soft_prompts(kit)]


def _check_kernels(kit: Kit) -> list[Row]:
    device = kit.device.torch_device
    cases = (*CASES, *MORE_CASES)
    adds = choose_adder(device)
    errors = {case.name: _error(World(case, device), adds) for case in cases}
    for name, error in errors.items():
        if error:
            print(f"    {name}: {error}", flush=True)
    of_torch = isinstance(adds(World(CASES[0], device).slots), TorchAdder)
    return [
        Row("adapters: wrong sums", sum(map(bool, errors.values())), f"of {len(cases)}", goal=AtMost(0)),
        Row("adapters: added by torch and not by kernels", int(of_torch), "", goal=AtMost(0 if kit.is_gpu else 1)),
    ]


def _error(world: World, adds: object) -> str:
    """Return "" if sums are torch's in float32 but for rounding, and each row has the bits that it has alone."""
    assert callable(adds)
    expected, out = world.expected(), world.out.clone()
    adds(world.slots).add(out, world.inputs, world.lora)
    without = torch.from_numpy(world.slots < 0).to(out.device)
    if not torch.equal(out[without], world.out[without]):
        return "a row without an adapter was touched"
    worst = (out.float() - expected).abs().max().item()
    if not worst <= TOLERANCES[world.case.dtype]:
        return f"off by {worst}"
    if out.device.type == "cpu":  # torch's own sums depend on the number of rows
        return ""
    for row in {0, 1, len(world.slots) - 2, len(world.slots) - 1}:
        alone = world.out[row : row + 1].clone()
        adds(world.slots[row : row + 1]).add(alone, world.inputs[row : row + 1], world.lora)
        if not torch.equal(alone[0], out[row]):
            return f"row {row} depends on its batch"
    return ""


def _check_rank(kit: Kit) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = write_tiny_model(root / "base", "llama", **WIDER)
        adapters = [
            write_adapter(root / f"a{rank}", base, rank=rank, targets=TARGETS, seed=rank, alpha=ALPHA) for rank in RANKS
        ]
        merged = [
            merge_adapter(root / f"m{rank}", base, adapter, scale=ALPHA / rank)
            for rank, adapter in zip(RANKS, adapters, strict=True)
        ]
        expected = [
            reference_generate(directory, prompt, NUM_TOKENS)
            for directory, prompt in product((base, *merged), PROMPTS[1:])
        ]
        assert len(set(map(tuple, expected))) == len(expected), "each adapter changes what is said"
        lora = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": len(RANKS), "max_lora_rank": max(RANKS)}
        with asked_rank(base, kit.rank_settings, **lora) as rank:
            digests = [_add(rank, adapter) for adapter in adapters]
            found = {"together": _answers(rank, ("", *digests))}
            found["the base alone"] = [*_answers(rank, ("",)), *found["together"][len(PROMPTS) - 1 :]]
            for level in (1, 2):
                rank.sleep_and_wake(level)
                found[f"after a sleep at level {level}"] = _answers(rank, ("", *digests))
    return [
        Row(f"adapters, {name}: merged models' answers", _count(answers, expected), "", goal=AtLeast(len(expected)))
        for name, answers in found.items()
    ]


def _check_soft_prompts(kit: Kit) -> list[Row]:
    """Compare vectors before a prompt, and keys and values before one, with the CPU's."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = write_tiny_model(root / "base", "llama", **WIDER)
        adapters = [write_soft_prompt(root / kind, base, kind=kind) for kind in SOFT_PROMPTS]
        with asked_rank(base, ON_CPU, enable_lora=True, max_loras=2) as rank:
            expected = _answers(rank, ("", *(_add(rank, adapter) for adapter in adapters)))
        with asked_rank(base, kit.rank_settings, enable_lora=True, max_loras=2) as rank:
            names = ("", *(_add(rank, adapter) for adapter in adapters))
            found = _answers(rank, names)
            rank.sleep_and_wake(2)
            found += _answers(rank, names)
    equal = _count(found, expected * 2)
    return [Row("adapters, soft prompts: answers of the CPU", equal, "", goal=AtLeast(2 * len(expected)))]


def _add(rank: AskedRank, path: Path) -> str:
    value = rank.command(AddLora(str(path)))
    return msgspec.json.decode(str(value), type=AdapterInfo).digest


def _answers(rank: AskedRank, adapters: Sequence[str]) -> list[list[int]]:
    wishes = [
        wish(prompt, adapter=adapter, max_tokens=NUM_TOKENS) for adapter, prompt in product(adapters, PROMPTS[1:])
    ]
    return [one.token_ids for one in rank.ask(*wishes)]


def _count(answers: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> int:
    return sum(mine == theirs for mine, theirs in zip(answers, expected, strict=True))
