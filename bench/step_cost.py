"""What a step of the engine costs around the forward pass, with 64 decoding sequences.

The real scheduler and the real input preparation run, and nothing in the model's place. `python -m bench.step_cost
--profile` shows where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import dataclass
from statistics import median

import torch

from bench.workload import make_workload
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.testing import make_add, make_report
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.input_batch import InputBatch
from dormouse_worker.model.logit_rows import choose_logit_rows
from dormouse_worker.settings import EngineSettings

NUM_SEQS = 64
NUM_BLOCKS = 4096
SETTINGS = EngineSettings(model="none", max_num_seqs=NUM_SEQS, max_num_batched_tokens=2048)
REPORT = make_report(num_gpu_blocks=NUM_BLOCKS, block_size=SETTINGS.block_size, max_model_len=2048)
OUTPUT_TOKENS = 512  # more than prefilling and measuring take
MEASURED_STEPS = 256
TOKEN_ID = 5  # what every sequence gets


@dataclass(frozen=True, slots=True)
class StepCost:
    """Medians over the measured steps, in milliseconds."""

    engine_ms: float  # schedule, commit, messages
    prepare_ms: float  # the forward pass's input, the attention plan included

    def __str__(self) -> str:
        return f"engine {self.engine_ms:.3f} ms, input preparation {self.prepare_ms:.3f} ms"

    @property
    def total_ms(self) -> float:
        """Return both together."""
        return self.engine_ms + self.prepare_ms


class PreparingExecutor:
    """Implements `ModelExecutor`: prepares each pass's input as the model runner does, and no more."""

    def __init__(self) -> None:
        self._backend = SdpaBackend()
        self._device = torch.device("cpu")
        self._input = InputBatch(
            max_num_seqs=NUM_SEQS,
            max_model_len=REPORT.max_model_len,
            block_size=REPORT.block_size,
            windows=self.layer_windows(),
        )
        self.is_decoding = False  # the last batch had one token of every sequence
        self.last_s = 0.0  # what its preparation took

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `ModelExecutor`."""
        return (None,)

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `ModelExecutor`."""
        self.is_decoding = batch.num_tokens == len(batch.sequences) == NUM_SEQS
        started_s = time.perf_counter()
        self._prepare(batch)
        sampled = [SampledToken(sequence.request_id, TOKEN_ID) for sequence in batch.sequences if sequence.samples]
        for token in sampled:
            self._input.append(token.request_id, token.token_id)
        self.last_s = time.perf_counter() - started_s
        return ModelOutput(sampled)

    def _prepare(self, batch: Batch) -> None:
        """Do what `ModelRunner` does before it calls the model. Follow it here when it changes there."""
        self._input.update(batch)
        packed = self._input.pack(batch)
        wanted = choose_logit_rows(batch, packed, self._input)
        for group in packed.groups:
            self._backend.plan(group, self._device)
        for numbers in (packed.token_ids, packed.positions, wanted.rows):
            torch.as_tensor(numbers, device=self._device)


def decoding_engine(executor: PreparingExecutor) -> Engine:
    """Return an engine in whose next step every sequence decodes; the prompts are those of W1."""
    engine = build_engine(SETTINGS, REPORT, (NUM_BLOCKS, 0), executor, clock=time.monotonic)
    for request in make_workload("W1", vocab_size=4096, count=NUM_SEQS).requests:
        refusal = engine.add(make_add(request.id, request.prompt, max_tokens=OUTPUT_TOKENS))
        assert refusal is None, refusal
    while not executor.is_decoding:
        engine.step()
    return engine


def measure_step_ms(num_steps: int = MEASURED_STEPS) -> StepCost:
    """Return what a decoding step costs outside the model."""
    executor = PreparingExecutor()
    engine = decoding_engine(executor)
    engine_s, prepare_s = [], []
    for _ in range(num_steps):
        started_s = time.perf_counter()
        engine.step()
        engine_s.append(time.perf_counter() - started_s - executor.last_s)
        prepare_s.append(executor.last_s)
    return StepCost(1e3 * median(engine_s), 1e3 * median(prepare_s))


def main() -> None:
    """Print the cost, or a profile."""
    parser = argparse.ArgumentParser(prog="python -m bench.step_cost", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print the functions that cost most instead")
    if not parser.parse_args().profile:
        print(measure_step_ms())
        return
    engine = decoding_engine(PreparingExecutor())
    with cProfile.Profile() as profile:
        for _ in range(MEASURED_STEPS):
            engine.step()
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
