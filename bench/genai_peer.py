"""OpenVINO GenAI in a process of its own: `PEER_PYTHON -m bench.genai_peer MODEL_DIR METHOD THREADS`, see `helpers`.

Its continuous batching, with prefixes kept, over the graph of `openvino_decoder`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from bench.helpers import Job, start_and_answer_lines
from bench.openvino_decoder import Decoder
from bench.openvino_peer import FASTEST
from bench.plain_tensors import PlainTensors
from bench.traces import Trace

CACHE_GIB = 1  # as much as we have: every sequence of a workload has room
BATCHED_TOKENS = 512  # of one step


class Peer:
    """Decodes as often as it is asked."""

    def __init__(self, directory: str, method: str, threads: str) -> None:
        tensors, config = PlainTensors(Path(directory)), json.loads(Path(directory, "config.json").read_text("utf-8"))
        settings = {"INFERENCE_NUM_THREADS": int(threads), "PERFORMANCE_HINT": "LATENCY", **_fastest(method, config)}
        with TemporaryDirectory() as folder:
            model = Decoder(tensors, config, method, genai=True).build()
            openvino.save_model(model, Path(folder, "openvino_model.xml"), compress_to_fp16=False)
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(folder, _scheduler(), "CPU", settings)
        self._num_requests = 0

    def run(self, job: Job) -> list[Any]:
        """Return the replies in order."""
        open_: list[tuple[Trace, Any]] = []
        for wave in job.waves:
            open_ += [self._add(request) for request in wave]
            while not all(trace.has_begun for trace, _ in open_):
                self._step(open_)
        while self._pipeline.has_non_finished_requests():
            self._step(open_)
        return [trace.reply() for trace, _ in open_]

    def _add(self, request: Any) -> tuple[Trace, Any]:
        config = openvino_genai.GenerationConfig(max_new_tokens=request.max_tokens, ignore_eos=True, eos_token_id=0)
        trace = Trace(request, time.monotonic())
        self._num_requests += 1
        prompt = openvino.Tensor(np.array([request.prompt], np.int64))
        return trace, self._pipeline.add_request(self._num_requests, prompt, config)

    def _step(self, started: list[tuple[Trace, Any]]) -> None:
        self._pipeline.step()
        now_s = time.monotonic()
        for trace, handle in started:
            while handle.can_read():
                for output in handle.read().values():
                    trace.add(output.generated_ids, now_s)


def _fastest(method: str, config: Any) -> dict[str, str]:
    """Return how the plug-in multiplies fastest here: as the static peer's, but int8 rounds a row with one scale."""
    whole_rows = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": str(config["hidden_size"])}
    return {**FASTEST[method], **(whole_rows if method == "int8" else {})}


def _scheduler() -> Any:
    made = openvino_genai.SchedulerConfig()
    made.cache_size, made.max_num_batched_tokens = CACHE_GIB, BATCHED_TOKENS
    made.enable_prefix_caching = True
    return made


if __name__ == "__main__":
    start_and_answer_lines(lambda: Peer(*sys.argv[1:]).run)
