"""An object of 60 fields beside vLLM's: `python -m bench.structured_rival --merge`.

One answer at a time, by the same schema without blanks, in turns; tokens of each side by its own seconds. vLLM is that
of `make bench-peers`, with llguidance, which keeps all of the schema.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import msgspec
from rich.console import Console

from bench.helpers import Helper, environment
from bench.models import ensure_model
from bench.options import Options, main
from bench.peer_ask import PeerAsk, PeerSaid
from bench.peer_env import peer_python, peer_variables
from bench.results import RatioAtLeast, Row
from bench.structured_cases import bound_by, sixty_fields
from bench.structured_hostile import ends_of
from bench.structured_probe import Ask, Asked, Said
from bench.structured_validity import PROBE
from bench.workload import make_workload

MOST_TOKENS = 1_900
WHAT = "60 fields, batch 1, beside vLLM, small bf16"
BOUND_BY_LLGUIDANCE = json.dumps({"structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True}})


def measure(options: Options, console: Console) -> list[Row]:
    """Return the row. Raises NoPeer."""
    model, cores, python = ensure_model("small", "bf16"), sorted(os.sched_getaffinity(0)), peer_python()
    prompt = make_workload("W4", vocab_size=4096, count=1).requests[0].prompt
    asked = PeerAsk(tuple(prompt), MOST_TOKENS, sixty_fields(), temperature=1.0)
    ours = Ask([Asked(list(prompt), MOST_TOKENS, bound_by(sixty_fields(), ends_of(model)))])
    env = peer_variables(cores, environment())
    with (
        Helper(PROBE, str(model), str(options.threads or len(cores)), rests=True) as probe,
        Helper("bench.vllm_asked", str(model), BOUND_BY_LLGUIDANCE, python=python, env=env, rests=True) as peer,
    ):
        pairs = list(_laps(probe, ours, peer, asked, options.reps))
    for our, their in pairs:
        console.print(f"  {our.tokens_per_s:.1f}, {their.tokens_per_s:.1f}", highlight=False)
    our, their = sorted(pairs, key=lambda pair: pair[0].tokens_per_s / pair[1].tokens_per_s)[len(pairs) // 2]
    return [Row(WHAT, our.tokens_per_s, "output tokens/s", their.tokens_per_s, RatioAtLeast(1.5))]


def _laps(probe: Helper, ours: Ask, peer: Helper, asked: PeerAsk, count: int) -> Iterator[tuple[Said, PeerSaid]]:
    """Yield what both said, in turns; the first turn warms up. Raises RuntimeError if an answer is not whole."""
    for number in range(count + 1):
        ours = Ask([msgspec.structs.replace(ours.asked[0], seed=number)])
        our, their = probe.ask(ours, Said), peer.ask(asked, PeerSaid)
        if (our.finish_reasons[0], their.finish_reason) != ("stop", "stop"):
            raise RuntimeError(f"an answer was cut: {our.finish_reasons[0]}, {their.finish_reason}")
        if number:
            yield our, their


if __name__ == "__main__":
    main("structured", __doc__, measure)
