"""The peer in a process of its own: `python -m bench.peer MODEL_DIR THREADS`, see `helpers`. transformers' `generate`.

Static batches in the order of the requests, padded on the left; a batch runs until its longest output is complete, and
what a request gets beyond its own length is thrown away.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria
from transformers.utils import logging

from bench.helpers import Job, answer_lines
from bench.replies import Reply
from bench.workload import Request

PAD_ID = 1


class StepClock(StoppingCriteria):
    """Stops nothing: notes when each step of a batch had its tokens."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Note the time; return that no row has ended."""
        del scores, kwargs
        self.times_s.append(time.monotonic())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def load(model_dir: str) -> Any:
    """Return the model in the dtype of its files, without an end-of-sequence token."""
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD_ID
    return model.eval()


def generate_batch(model: Any, batch: Sequence[Request], submitted_s: float) -> list[Reply]:
    """Return the replies of one static batch."""
    width = max(len(request.prompt) for request in batch)
    padding = [width - len(request.prompt) for request in batch]
    ids = [[PAD_ID] * pad + request.prompt for pad, request in zip(padding, batch, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in padding]
    clock = StepClock()
    with torch.inference_mode():
        output = model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            max_new_tokens=max(request.max_tokens for request in batch),
            stopping_criteria=[clock],
        )
    rows = output[:, width:].tolist()
    return [
        Reply(row[: request.max_tokens], submitted_s, clock.times_s[0], clock.times_s[request.max_tokens - 1])
        for row, request in zip(rows, batch, strict=True)
    ]


def generate(model: Any, job: Job) -> list[Reply]:
    """Return the replies of all requests, batch after batch."""
    submitted_s, waiting = time.monotonic(), iter(job.requests)
    replies: list[Reply] = []
    while batch := list(islice(waiting, job.batch_size)):
        replies += generate_batch(model, batch, submitted_s)
    return replies


def main() -> None:
    """Answer jobs until standard input ends."""
    model_dir, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    model = load(model_dir)
    answer_lines(lambda job: generate(model, job))


if __name__ == "__main__":
    main()
