"""How many bytes a step sends to each rank of a group, by the lengths of the sequences. Starts no rank."""

from __future__ import annotations

from statistics import mean

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.grammars import Preparation, Prepared
from dormouse_worker.engine.testing import make_add, make_report
from dormouse_worker.executor.ranks.messages import Step, encode

NUM_SEQUENCES = 64
LENGTHS = (300, 1900)  # tokens; both take as many bytes to write
NUM_STEPS = 64  # four times a block's tokens: new blocks weigh alike
BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048


class CountingExecutor:
    """Implements `ModelExecutor`: encodes what a group's leader sends, and says the same token for ever."""

    def __init__(self) -> None:
        self._sampled: list[SampledToken] = []
        self.num_bytes: list[int] = []  # of each step
        self.is_decoding = False  # the last batch had one token of every sequence

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `ModelExecutor`."""
        return (None,)

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `ModelExecutor`."""
        del grammar
        return Prepared()

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `ModelExecutor`."""
        self.is_decoding = batch.num_tokens == len(batch.sequences) == NUM_SEQUENCES
        self.num_bytes.append(len(encode(Step(1000, batch, self._sampled))))
        self._sampled = [SampledToken(sequence.request_id, 5) for sequence in batch.sequences if sequence.samples]
        return ModelOutput(self._sampled)


def measure_step_bytes() -> tuple[float, float]:
    """Return the mean bytes of a step over short and over long sequences."""
    short, long = (_step_bytes(length) for length in LENGTHS)
    return short, long


def _step_bytes(length: int) -> float:
    executor = CountingExecutor()
    settings = EngineSettings(model="none", max_num_seqs=NUM_SEQUENCES, enable_prefix_caching=False)
    num_blocks = NUM_SEQUENCES * MAX_MODEL_LEN // BLOCK_SIZE
    report = make_report(num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN)
    engine = build_engine(settings, report, (num_blocks, 0), executor, clock=lambda: 0.0)
    for number in range(NUM_SEQUENCES):
        engine.add(make_add(f"{number:03}", [1] * length, max_tokens=MAX_MODEL_LEN - length))
    while not executor.is_decoding:
        engine.step()
    executor.num_bytes.clear()
    for _ in range(NUM_STEPS):
        engine.step()
    return mean(executor.num_bytes)
