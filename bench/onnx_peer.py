"""onnxruntime-genai in a process of its own: `PEER_PYTHON -m bench.onnx_peer MODEL_DIR THREADS`, see `helpers`.

One request after the other, with weights of 4 bits; nothing is kept between them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime_genai  # type: ignore[import-not-found]

from bench.helpers import Job, start_and_answer_lines
from bench.onnx_decoder import OnnxDecoder
from bench.plain_tensors import PlainTensors
from bench.replies import Reply
from bench.workload import Request


class Peer:
    """Decodes as often as it is asked."""

    def __init__(self, directory: str, threads: str) -> None:
        config = json.loads(Path(directory, "config.json").read_text("utf-8"))
        with TemporaryDirectory() as folder:
            OnnxDecoder(PlainTensors(Path(directory)), config).write(Path(folder), int(threads))
            self._model = onnxruntime_genai.Model(folder)

    def run(self, job: Job) -> list[Reply]:
        """Return the replies, in order."""
        return [self._answer(request) for request in job.requests]

    def _answer(self, request: Request) -> Reply:
        tokens: list[int] = []
        times_s: list[float] = []
        length = len(request.prompt) + request.max_tokens
        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(max_length=length, min_length=length)  # no end before that
        submitted_s = time.monotonic()
        generator = onnxruntime_genai.Generator(self._model, params)
        generator.append_tokens(request.prompt)
        for _ in range(request.max_tokens):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            times_s.append(time.monotonic())
        return Reply(tokens, submitted_s, times_s[0], times_s[-1])


if __name__ == "__main__":
    start_and_answer_lines(lambda: Peer(*sys.argv[1:]).run)
