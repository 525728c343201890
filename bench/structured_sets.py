"""Accepted tokens beside xgrammar's: `python -m bench.structured_sets --merge`.

200 generated schemas; a random walk through each, which takes any token that ours allows; at each position both sets
of allowed tokens. JSON without blanks. xgrammar is that of `make bench-peers`, without which nothing is measured.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper, environment
from bench.options import Options, main
from bench.peer_env import peer_python, peer_variables
from bench.results import AtMost, Row
from bench.structured_cases import bound_by, make_schema
from bench.token_sets import Difference, Masks, Position, Walk, Walks, allowed
from dormouse_worker.common.grammar import compile_grammar, make_tokenizer, mask_of, special_tokens
from tools.train_model import Recipe, model_dir

NUM_SCHEMAS, MOST_TOKENS = 200, 120
WHAT = "accepted tokens beside xgrammar's"


class Walker:
    """Walks through our grammars at random."""

    def __init__(self, model: Path) -> None:
        config = json.loads((model / "config.json").read_text("utf-8"))
        self.vocab_size: int = config["vocab_size"]
        self.ends = tuple(
            [config["eos_token_id"]] if isinstance(config["eos_token_id"], int) else config["eos_token_id"]
        )
        self._guide = make_tokenizer(model / "tokenizer.json", self.ends)
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.special = frozenset(special_tokens(json.loads((model / "tokenizer.json").read_text("utf-8"))).values())

    def __repr__(self) -> str:
        return f"Walker({self.vocab_size} tokens)"

    def text(self, *tokens: int) -> str:
        """Return what tokens say."""
        said: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return said

    def walk(self, number: int) -> tuple[Walk, list[tuple[frozenset[int], bool]]]:
        """Return a walk, and what ours allows at each of its positions, and whether the text is forced there."""
        draw, schema = random.Random(f"walk/{number}"), make_schema(number)
        matcher = compile_grammar(self._guide, bound_by(schema, self.ends).text)
        tokens: list[int] = []
        seen = []
        while True:
            is_forced = bool(matcher.compute_ff_tokens())
            ours = allowed(mask_of(matcher), self.vocab_size)
            seen.append((ours, is_forced))
            token = draw.choice(sorted(ours))
            if token in self.ends or len(tokens) == MOST_TOKENS:
                return Walk(schema, tuple(tokens)), seen
            tokens.append(token)
            matcher.consume_token(token)


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. Raises NoPeer."""
    walker, count = Walker(model_dir(Recipe())), options.count or NUM_SCHEMAS
    model = str(model_dir(Recipe()))
    walks = [walker.walk(number) for number in range(count)]
    arguments = (model, str(walker.vocab_size), *map(str, walker.ends))
    env = peer_variables(sorted(os.sched_getaffinity(0)), environment())
    with Helper("bench.xgrammar_peer", *arguments, python=peer_python(), env=env) as peer:
        masks = peer.ask(Walks(tuple(walk for walk, _ in walks)), Masks)
    found: Counter[Difference] = Counter()
    for (walk, seen), theirs in zip(walks, masks.masks, strict=True):
        for position in _positions(walker, walk, seen, theirs):
            kind = position.difference(walker.text, walker.special)
            found[kind] += 1
            if kind == "other":
                console.print(f"  {position.text!r} of {walk.schema}", highlight=False)
    return list(_rows(count, found))


def _positions(
    walker: Walker, walk: Walk, seen: list[tuple[frozenset[int], bool]], masks: tuple[bytes, ...]
) -> Iterator[Position]:
    for place, ((ours, is_forced), mask) in enumerate(zip(seen, masks, strict=False)):
        theirs = allowed(mask, walker.vocab_size)
        yield Position(ours, theirs, walker.text(*walk.tokens[:place]), is_forced)


def _rows(count: int, found: Counter[Difference]) -> Iterator[Row]:
    what = f"{WHAT}, {count} schemas, {found.total()} positions"
    yield Row(f"{what}: the same set", found["equal"], "positions")
    yield Row(f"{what}: of forced text the tokenizer's own spelling alone", found["one spelling"], "positions")
    yield Row(
        f"{what}: escapes in bounded strings, where xgrammar has control characters", found["escapes"], "positions"
    )
    yield Row(f"{what}: -0 as an integer within bounds", found["minus zero"], "positions")
    yield Row(f"{what}: differ otherwise", found["other"], "positions", goal=AtMost(0))


if __name__ == "__main__":
    main("structured", __doc__, measure)
