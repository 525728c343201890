"""An engine over the fake executor whose blocks outlive it: their bytes are the token ids that they hold."""

import array

import msgspec

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.block_keeper import BlockKeeper
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, next_token, visible_tokens
from dormouse_worker.engine.testing_executor import FakeExecutor

BLOCK_SIZE = 4
BLOCK_BYTES = 8 * BLOCK_SIZE
PROMPT = range(100, 117)  # four full blocks and a token


class StoringFake(FakeExecutor):
    """Implements `BlockCopier` over the fake's cache."""

    def read_blocks(self, block_ids):
        return [memoryview(array.array("q", self._tokens_of(block)).tobytes()) for block in block_ids]

    def write_blocks(self, block_ids, data):
        for place, block in enumerate(block_ids):
            tokens = array.array("q", bytes(data[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES]))
            self._cache[block] = dict(enumerate(tokens))

    def _tokens_of(self, block):
        return [self._cache[block][slot] for slot in range(BLOCK_SIZE)]


class StoredEngine:
    """One process's engine over a store, and what it said."""

    def __init__(self, store, *, num_blocks=10, max_model_len=32, windows=(None,), clock=None, method="off"):
        self.clock = clock or ManualClock()
        self.store = store
        self.windows = windows
        report = make_report(num_gpu_blocks=num_blocks, max_model_len=max_model_len, block_size=BLOCK_SIZE)
        self.executor = StoringFake(report, self.clock, windows)
        settings = EngineSettings(model="m", max_num_seqs=4, max_num_batched_tokens=64, speculation_method=method)
        self.engine = build_engine(settings, report, (num_blocks, 0), self.executor, clock=self.clock)
        self.tables = self.engine._scheduler.tables
        self.keeper = BlockKeeper(store, self.tables, self.executor, BLOCK_BYTES, self.clock)
        self.engine.keeper = self.keeper
        self.told = []
        self.kv_events = []
        self.said = {}
        self.cached = {}

    def ask(self, prompt, count=4, request_id="r", **fields):
        """Answer one request; check its tokens, and return how many of the prompt were known."""
        self.add(prompt, count, request_id, **fields)
        self.run()
        assert self.said.pop(request_id) == self.expected(prompt, count)
        return self.cached[request_id]

    def run(self):
        """Step until nothing is left."""
        while self.engine.has_work:
            self.step()
        self.engine.check_integrity()

    def step(self):
        outputs = self.engine.step()
        if outputs is None:
            return
        self.told += [outputs.kv_store] if outputs.kv_store else []
        self.kv_events += outputs.kv_events
        for output in outputs.outputs:
            if output.request_id not in self.said:
                self.cached[output.request_id] = output.cached_tokens
            self.said.setdefault(output.request_id, []).extend(output.token_ids)

    def add(self, prompt, count=4, request_id="r", **fields):
        message = make_add(request_id, prompt, max_tokens=count)
        assert self.engine.add(msgspec.structs.replace(message, **fields)) is None

    def expected(self, prompt, count):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + count:
            tokens.append(next_token(*visible_tokens(tokens, self.windows)))
        return tokens[len(prompt) :]

    def save(self):
        self.keeper.save_all(60.0)

    def finish_writing(self):
        """Wait for what the thread that writes was given."""
        self.keeper._threads._writer.submit(lambda: None).result(60.0)

    def count(self, name):
        self.told += [counts] if (counts := self.keeper.take_counts()) else []
        return sum(getattr(counts, name) for counts in self.told)

    def misses(self):
        self.count("hits")
        found = {}
        for counts in self.told:
            for reason, number in counts.misses.items():
                found[reason] = found.get(reason, 0) + number
        return found
