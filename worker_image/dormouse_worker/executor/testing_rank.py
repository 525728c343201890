"""One rank of a group as a program, for tests: `python -m dormouse_worker.executor.testing_rank PROGRAM RANK …`.

generate   MODEL T P PROMPT COUNT: load, generate, sleep and wake, generate again; prints what this rank sampled
wait       of two ranks: add up with the other until that fails; prints how
leave      of two ranks: add up once, then end without a word
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.layout import Layout
from dormouse_worker.engine.batch import NewSequence, SampledToken, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.parallel.start import connect_from_environment

EXIT_CODE = 9


def generate(rank: int, model: str, tensor: str, pipeline: str, prompt: str, count: str) -> int:
    """Generate before and after a sleep."""
    sizes = {"tensor_parallel_size": int(tensor), "pipeline_parallel_size": int(pipeline)}
    worker = CpuWorker(make_settings(Path(model), kv_cache_memory_bytes=1 << 20, **sizes), rank)
    worker.init_device()
    worker.load_model()
    worker.determine_num_available_blocks()
    worker.initialize_cache(40, 0)
    told = {}
    for when in ("before", "after"):
        told[when] = _generate(worker, json.loads(prompt), int(count))
        worker.sleep(2, TAGS)
        worker.wake_up(TAGS)
    print(json.dumps(told))
    assert worker.communicator is not None, "the device is there"
    worker.communicator.barrier()  # as a leader lets go of ranks only when all have answered
    worker.shutdown()
    return 0


def _generate(worker: CpuWorker, prompt: list[int], count: int) -> list[int]:
    """Return what this rank sampled; the others learn it by a sum, to which they bring zero."""
    known = list(prompt)
    tables = (list(range(-(-(len(prompt) + count) // worker.settings.block_size))),)
    for _ in range(count):
        sequence = NewSequence("r", prompt, known[len(prompt) :], make_sampling(max_tokens=count))
        sampled = worker.execute_model(single(sequence, tables)).sampled
        known.append(_tell(sampled))
    return known[len(prompt) :] if worker.layout.samples else []


def _tell(sampled: list[SampledToken]) -> int:
    token = torch.tensor([float(sampled[0].token_id) if sampled else 0.0])
    torch.distributed.all_reduce(token)
    return int(token)


def wait(rank: int) -> int:
    """Add up until the other is gone."""
    group = connect_from_environment(Layout(2, 1, rank), torch.device("cpu"))
    try:
        while True:
            group.all_reduce(torch.ones(1))
    except RankLost as error:
        print(f"{error.reason}: {error}")
    group.close()
    return 0


def leave(rank: int) -> int:
    """Add up once and end as a killed process does."""
    group = connect_from_environment(Layout(2, 1, rank), torch.device("cpu"))
    group.all_reduce(torch.ones(1))
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    program, number, *rest = sys.argv[1:]
    programs: dict[str, Callable[..., int]] = {"generate": generate, "wait": wait, "leave": leave}
    sys.exit(programs[program](int(number), *rest))
