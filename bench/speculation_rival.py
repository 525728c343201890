"""N-gram drafts beside vLLM's: `python -m bench.speculation_rival`.

One greedy request alone of SmolLM2-135M-Instruct, copy and quotes, in turns; tokens of each side by its own seconds.
vLLM is that of `make bench-peers`, with the same runs of two to four tokens and as many drafts as ours at most.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from rich.console import Console

from bench.helpers import Helper, environment
from bench.options import Options, main
from bench.peer_ask import PeerAsk, PeerSaid
from bench.peer_env import peer_python, peer_variables
from bench.results import RatioAtLeast, Row
from bench.speculation import PROBE, _ask, _encoder
from bench.speculation_cases import CASES, Case
from bench.structured_probe import Ask, Said
from tools.demo_model import demo_model_dir

NAMES = ("copy", "quotes from a text")
NGRAM = json.dumps(
    {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 8,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    }
)


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. Raises NoPeer. The chat model must have been made (`make demo-model`)."""
    chat, cores, python = demo_model_dir(), sorted(os.sched_getaffinity(0)), peer_python()
    env, encode = peer_variables(cores, environment()), _encoder(chat)
    with (
        Helper(PROBE, str(chat), str(options.threads or len(cores)), "ngram", rests=True) as probe,
        Helper("bench.vllm_asked", str(chat), NGRAM, python=python, env=env, rests=True) as peer,
    ):
        cases = [case for case in CASES if case.name in NAMES]
        return [
            _beside(case, [_ask(case, wish, encode) for wish in case.wishes], (probe, peer), options.reps, console)
            for case in cases
        ]


def _beside(case: Case, asks: Sequence[Ask], sides: tuple[Helper, Helper], reps: int, console: Console) -> Row:
    """Return tokens per second of both: the pair with the middle ratio. The first turn warms up."""
    pairs = [(_ours(sides[0], asks), _theirs(sides[1], asks)) for _ in range(reps + 1)][1:]
    console.print(f"  {case.name}: " + ", ".join(f"{our:.1f} / {their:.1f}" for our, their in pairs), highlight=False)
    our, their = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
    return Row(f"{case.name}, beside vLLM's ngram", our, "output tokens/s", their, RatioAtLeast(1.5))


def _ours(side: Helper, asks: Sequence[Ask]) -> float:
    said = [side.ask(ask, Said) for ask in asks]
    return sum(len(one.tokens[0]) for one in said) / sum(one.seconds for one in said)


def _theirs(side: Helper, asks: Sequence[Ask]) -> float:
    wanted = [ask.asked[0] for ask in asks]
    said = [
        side.ask(PeerAsk(tuple(one.prompt), one.max_tokens, stop_token_ids=one.stop_token_ids), PeerSaid)
        for one in wanted
    ]
    return sum(one.num_tokens for one in said) / sum(one.seconds for one in said)


if __name__ == "__main__":
    main("speculation", __doc__, measure)
