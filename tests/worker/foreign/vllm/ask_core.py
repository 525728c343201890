"""Asks vLLM's core for the contract: run by vLLM's interpreter with a model's directory; prints name → problem."""

from __future__ import annotations

import json
import os
import sys
import traceback

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.foreign.vllm.options import variables
from tests.worker.foreign.vllm.contract import CONTRACT, NUM_BLOCKS


def main() -> None:
    """Ask everything of one core."""
    settings = EngineSettings(
        model=sys.argv[1],
        runtime="vllm",
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=512,
    )
    os.environ.update(variables(settings, os.environ, sorted(os.sched_getaffinity(0))))
    from dormouse_worker.foreign.vllm.core import VllmCore

    core = VllmCore(settings)
    core.load()
    core.compute_most()
    assert core.allocate(NUM_BLOCKS) == NUM_BLOCKS
    found = {}
    for keeps in CONTRACT:
        try:
            keeps(core)
        except Exception:  # noqa: BLE001  whatever it is, the test shows it
            found[keeps.__name__] = traceback.format_exc()
    core.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
