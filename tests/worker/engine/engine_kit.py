"""Engines over fakes that take several batches, what they must say, and how an engine is run to its end."""

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, next_token


def expected(prompt, count):
    """Return what the fake model says after the prompt."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def finish(engine, tokens, told=None):
    """Step until nothing is left; return the tokens by request, with those that came. All is noted in `told`."""
    told = [] if told is None else told
    while (outputs := engine.step()) is not None:
        told.append(outputs)
        assert not outputs.failed
        for output in outputs.outputs:
            tokens[output.request_id] += output.token_ids
    engine.check_integrity()
    return tokens


class StagedEngine:
    """An engine over a fake of this class, and what it said."""

    def __init__(self, executor_class, *, num_blocks=40, host_blocks=0, block_size=4, **settings):
        report = make_report(num_gpu_blocks=num_blocks, block_size=block_size)
        self.executor = executor_class(report)
        settings = EngineSettings(model="m", **{"max_num_seqs": 8, "max_num_batched_tokens": 64, **settings})
        self.engine = build_engine(settings, report, (num_blocks, host_blocks), self.executor, clock=ManualClock())
        self.scheduler = self.engine._scheduler
        self.tokens: dict[str, list[int]] = {}

    def add(self, *names, length=3, **sampling):
        for number, name in enumerate(names):
            assert self.engine.add(make_add(name, range(number, number + length), **sampling)) is None

    def under_way(self):
        return ["".join(batch.request_ids) for batch in self.executor.under_way]

    def step(self):
        outputs = self.engine.step()
        for output in outputs.outputs if outputs else ():
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
        return outputs

    def run(self):
        while self.step() is not None:
            pass
        self.engine.check_integrity()
        return self.tokens
