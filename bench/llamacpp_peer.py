"""llama.cpp in a process of its own: `PEER_PYTHON -m bench.llamacpp_peer GGUF_FILE THREADS`, see `helpers`.

Its server without HTTP, as the package xllamacpp has it: one request after the other, nothing kept between them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import xllamacpp  # type: ignore[import-not-found]

from bench.helpers import Job, start_and_answer_lines
from bench.replies import Reply
from bench.workload import Request

CONTEXT = 512


class Peer:
    """Decodes as often as it is asked."""

    def __init__(self, file: str, threads: str) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = file
        params.n_ctx, params.n_parallel, params.warmup = CONTEXT, 1, True
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
        self._server = xllamacpp.Server(params)

    def run(self, job: Job) -> list[Reply]:
        """Return the replies, in order."""
        return [self._answer(request) for request in job.requests]

    def _answer(self, request: Request) -> Reply:
        asked = {
            "prompt": request.prompt,
            "n_predict": request.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "stream": True,
        }
        tokens: list[int] = []
        times_s: list[float] = []

        def take(chunk: Any) -> None:
            text = chunk["choices"][0]["text"]
            if text:
                tokens.append(int(text[1:]))  # see `gguf_model.TEXT`
                times_s.append(time.monotonic())

        submitted_s = time.monotonic()
        self._server.handle_completions(asked, take)
        assert len(tokens) == request.max_tokens, f"{len(tokens)} tokens"
        return Reply(tokens, submitted_s, times_s[0], times_s[-1])


if __name__ == "__main__":
    start_and_answer_lines(lambda: Peer(*sys.argv[1:]).run)
