"""Groups of ranks in processes of their own, and what a test asks of them."""

from __future__ import annotations

import os

from dormouse_worker.common.group import GroupPlace
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.executor.ranks.multi_process import MultiProcessExecutor
from dormouse_worker.executor.testing_ranks import group_settings, order_ranks, write_group_model

GONE_S = 20.0


class Groups:
    """Makes groups in one directory, and ends them."""

    def __init__(self, directory):
        self.directory = directory
        self.made = []

    def make(self, tensor=2, *, rank_timeout_s=90.0, **orders):
        write_group_model(self.directory, **orders)
        place = GroupPlace(rank_timeout_s=rank_timeout_s, start_timeout_s=90.0)
        executor = MultiProcessExecutor(group_settings(self.directory, tensor), os.environ, place)
        self.made.append(executor)
        return executor

    def start(self, tensor=2, **orders):
        executor = self.make(tensor, **orders)
        executor.init_device()
        executor.load_model()
        executor.determine_num_available_blocks()
        executor.initialize_cache(10, 0)
        return executor

    def order(self, **orders):
        order_ranks(self.directory, **orders)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check_for_ever(executor):
    while True:
        executor.check_ranks()


def facts(executor):
    return executor.collective_rpc("facts")


def tokens_of(executor, *requests, stages=1):
    """Return the tokens by request of an engine over this executor."""
    settings = group_settings("/nowhere", pipeline=stages, max_num_seqs=4, max_num_batched_tokens=8)
    engine = build_engine(settings, executor.get_memory_report(), (10, 0), executor, clock=lambda: 0.0)
    for request in requests:
        assert engine.add(request) is None
    tokens = {}
    while engine.has_work:
        step = engine.step()
        assert not step.failed
        for output in step.outputs:
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens
