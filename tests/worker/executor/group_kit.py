"""Engines over groups of ranks, and the prompts that they answer."""

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.model.testing import MAX_POSITIONS
from tests.worker.engine.engine_kit import finish

BLOCK_SIZE = 4
MAX_TOKENS = 10
PROMPTS = {str(n): [(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))}


def make_engine(group, *, num_blocks=64, tokens=256, host_blocks=0, caches=False, slots=None, **fields):
    group.initialize_cache(num_blocks, host_blocks)
    longest = min(MAX_POSITIONS, num_blocks * BLOCK_SIZE)
    report = make_report(num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=longest)
    settings = EngineSettings(
        **{"model": "m", "max_num_seqs": 4, **fields},
        max_num_batched_tokens=tokens,
        enable_prefix_caching=caches,
        pipeline_parallel_size=group.settings.pipeline_parallel_size,
    )
    engine = build_engine(settings, report, (num_blocks, host_blocks), group, clock=ManualClock(), adapters=slots)
    assert engine._scheduler.limits.max_batches_under_way == settings.pipeline_parallel_size
    return engine


def run(engine, prompts, **sampling):
    """Run all prompts at once to their end; return {name: tokens}."""
    for name, prompt in prompts.items():
        assert engine.add(make_add(name, prompt, **{"max_tokens": MAX_TOKENS, **sampling})) is None
    return finish(engine, {name: [] for name in prompts})


def counters(engine):
    return engine._scheduler.counters
