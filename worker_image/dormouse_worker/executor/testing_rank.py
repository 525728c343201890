"""What one rank of a group does in tests of groups, each in a process of its own.

Where the others are is in the environment, as `connect_from_environment` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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


def generate(
    rank: int, model: Path, tensor: int, pipeline: int, prompt: Sequence[int], count: int
) -> dict[str, list[int]]:
    """Generate `count` tokens, sleep and wake, generate again; return what this rank sampled before and after."""
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    worker = CpuWorker(make_settings(model, kv_cache_memory_bytes=1 << 20, **sizes), rank)
    worker.init_device()
    worker.load_model()
    worker.determine_num_available_blocks()
    worker.initialize_cache(40, 0)
    told = {}
    for when in ("before", "after"):
        told[when] = _generate(worker, list(prompt), count)
        worker.sleep(2, TAGS)
        worker.wake_up(TAGS)
    assert worker.communicator is not None, "the device is there"
    worker.communicator.barrier()  # as a leader lets go of ranks only when all have answered
    worker.shutdown()
    return told


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


def wait(rank: int) -> str:
    """Add up with the other of two ranks until that fails; return how."""
    group = connect_from_environment(Layout(2, 1, rank), torch.device("cpu"))
    try:
        while True:
            group.all_reduce(torch.ones(1))
    except RankLost as error:
        return f"{error.reason}: {error}"
    finally:
        group.close()


def leave(rank: int) -> None:
    """Add up once with the other of two ranks and end as a killed process does, with EXIT_CODE."""
    group = connect_from_environment(Layout(2, 1, rank), torch.device("cpu"))
    group.all_reduce(torch.ones(1))
    os._exit(EXIT_CODE)
