"""vLLM in a process of its own: `PEER_PYTHON -m bench.vllm_peer MODEL_DIR DTYPE [ADAPTER_DIR ...]`.

See `helpers` and `peer_env`. A job's requests have the adapters in turns.

Runs under the Python of the peer's environment and so imports no more of ours than the protocol. The variables of
`peer_env` decide whether vLLM's engine core runs in this process or in one of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from bench.helpers import Job, start_and_answer_lines
from bench.replies import Reply
from bench.traces import Trace
from bench.workload import Request

MAX_MODEL_LEN = 2048


class Engine:
    """vLLM's engine, asked request by request and stepped as its own `LLM.generate` does it."""

    def __init__(self, model_dir: str, dtype: str, adapters: Sequence[str] = ()) -> None:
        llm = LLM(
            model=model_dir,
            dtype=dtype,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            seed=0,
            **(_room_for(adapters) if adapters else {}),
        )
        self._engine: Any = llm.llm_engine
        self._num_jobs = 0
        self._adapters = [LoRARequest(path, number, path) for number, path in enumerate(adapters, 1)] or [None]

    def __repr__(self) -> str:
        return f"Engine({self._num_jobs} jobs done)"

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in order. Raises RuntimeError if tokens are missing."""
        self._num_jobs += 1
        # Who asks for few messages gets one with everything: putting together what nobody reads is not measured.
        kind = RequestOutputKind.DELTA if job.stream_interval == 1 else RequestOutputKind.FINAL_ONLY
        traces: dict[str, Trace] = {}
        for number, request in enumerate(job.requests):
            request_id = f"{self._num_jobs}-{request.id}"
            traces[request_id] = Trace(request, time.monotonic())
            adapter = self._adapters[number % len(self._adapters)]
            prompt = {"prompt_token_ids": request.prompt}
            self._engine.add_request(request_id, prompt, _params(request, kind), lora_request=adapter)
        for output in self._outputs():
            trace = traces[output.request_id]
            trace.add(output.outputs[0].token_ids, time.monotonic(), output.num_cached_tokens or 0)
        return [trace.reply() for trace in traces.values()]

    def _outputs(self) -> Iterator[Any]:
        while self._engine.has_unfinished_requests():
            yield from self._engine.step()


def _room_for(adapters: Sequence[str]) -> dict[str, Any]:
    """Return the settings with which all adapters are there at once."""
    ranks = [json.loads(Path(path, "adapter_config.json").read_text())["r"] for path in adapters]
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": max(ranks)}


def _params(request: Request, kind: Any) -> Any:
    return SamplingParams(
        temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True, detokenize=False, output_kind=kind
    )


def main() -> None:
    """Answer jobs until standard input ends."""
    model_dir, dtype, *adapters = sys.argv[1:]
    start_and_answer_lines(lambda: Engine(model_dir, dtype, adapters).run)


if __name__ == "__main__":
    main()
