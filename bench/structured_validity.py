"""Do answers that end validate: `python -m bench.structured_validity --merge [--parts real]`.

1,000 generated schemas, 64 at a time, at temperature 1 with seeds: the small trained model, a real one
(SmolLM2-135M-Instruct), and random weights, which push against every grammar. `--parts` measures some of these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import jsonschema  # type: ignore[import-untyped]
from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtLeast, Row
from bench.structured_cases import bound_by, make_schema
from bench.structured_hostile import ends_of
from bench.structured_probe import Ask, Asked, Said
from tools.demo_model import demo_model_dir
from tools.train_model import Recipe
from tools.train_model import model_dir as trained_dir

PROBE = "bench.structured_probe"
NUM_SCHEMAS, NUM_SEQS = 1_000, 64
MOST_TOKENS = 300

MODELS: Mapping[str, tuple[str, Callable[[], Path]]] = MappingProxyType(
    {
        "trained": ("the small trained model", lambda: trained_dir(Recipe())),
        "real": ("SmolLM2-135M-Instruct", demo_model_dir),
        "random": ("random weights", lambda: ensure_model("tiny", "bf16")),
    }
)


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. The chat model must have been made (`make demo-model`)."""
    if unknown := set(options.parts) - set(MODELS):
        raise SystemExit(f"--parts has {', '.join(sorted(unknown))}; allowed are {', '.join(MODELS)}")
    threads = str(options.threads or len(os.sched_getaffinity(0)))
    rows = []
    for name, model_dir in (MODELS[part] for part in options.parts or MODELS):
        model = model_dir()
        with Helper(PROBE, str(model), threads) as probe:
            rows.append(_validity(name, model, probe, options, console))
    return rows


def _validity(name: str, model: Path, probe: Helper, options: Options, console: Console) -> Row:
    """Return which share of the answers that ended validates."""
    text_of, ends = Tokenizer.from_file(str(model / "tokenizer.json")).decode, ends_of(model)
    count, valid, ended = options.count or NUM_SCHEMAS, 0, 0
    for first in range(0, count, NUM_SEQS):
        numbers = range(first, min(count, first + NUM_SEQS))
        said = probe.ask(Ask([bound(number, ends) for number in numbers]), Said)
        for number, tokens, reason in zip(numbers, said.tokens, said.finish_reasons, strict=True):
            if reason == "stop":
                ended += 1
                valid += is_valid(text_of(tokens[:-1], skip_special_tokens=False), number)
    console.print(f"  {name}: {valid} of {ended} answers that ended, of {count}", highlight=False)
    what = f"finished outputs that validate, {count} schemas, {name}"
    return Row(what, 100 * valid / max(1, ended), "%", goal=AtLeast(100))


def bound(number: int, ends: tuple[int, ...]) -> Asked:
    """Return an answer that is bound by the schema of this number."""
    return Asked([7, number % 90 + 5], MOST_TOKENS, bound_by(make_schema(number), ends), seed=number)


def is_valid(text: str, number: int) -> bool:
    """Return whether an answer is what the schema of this number accepts."""
    try:
        jsonschema.validate(json.loads(text), make_schema(number))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    main("structured", __doc__, measure)
