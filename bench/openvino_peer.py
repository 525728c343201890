"""OpenVINO in a process of its own: `PEER_PYTHON -m bench.openvino_peer MODEL_DIR METHOD THREADS`, see `helpers`.

Requests of one length, in one batch from the first step to the last.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]

from bench.helpers import Job, answer_lines
from bench.openvino_decoder import Decoder
from bench.plain_tensors import PlainTensors
from bench.replies import Reply

# rounds rows to 8 bits; by default processors with bfloat16 multiply in it, a sixth slower with many rows
ROUNDED = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
FASTEST = {"none": {"INFERENCE_PRECISION_HINT": "bf16"}, "int8": ROUNDED, "int4": ROUNDED}


class Peer:
    """Decodes as often as it is asked."""

    def __init__(self, directory: str, method: str, threads: str) -> None:
        tensors, config = PlainTensors(Path(directory)), json.loads(Path(directory, "config.json").read_text("utf-8"))
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **FASTEST[method]}
        model = Decoder(tensors, config, method).build()
        self._request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def run(self, job: Job) -> list[Reply]:
        """Return the replies of requests of one length."""
        ids = np.array([request.prompt for request in job.requests])
        length, steps = 0, job.requests[0].max_tokens
        assert {request.max_tokens for request in job.requests} == {steps}, "one static batch"
        made: list[np.ndarray[Any, Any]] = []
        times_s: list[float] = []
        submitted_s = time.monotonic()
        self._request.reset_state()
        beams = np.arange(len(ids), dtype=np.int32)
        while len(made) < steps:
            positions = np.broadcast_to(np.arange(length, length + ids.shape[1]), ids.shape)
            asked = {"input_ids": ids, "position_ids": positions, "beam_idx": beams}
            logits = self._request.infer(asked, share_outputs=True)[0]
            length += ids.shape[1]
            ids = logits.argmax(-1)[:, None]
            made.append(ids[:, 0])
            times_s.append(time.monotonic())
        tokens = np.array(made).T.tolist()
        return [Reply(row, submitted_s, times_s[0], times_s[-1]) for row in tokens]


if __name__ == "__main__":
    answer_lines(Peer(*sys.argv[1:]).run)
