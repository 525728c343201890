"""vLLM asked for one answer at a time: `PEER_PYTHON -m bench.vllm_asked MODEL_DIR [OPTIONS]`, see `peer_env`.

OPTIONS are further arguments of its `LLM`, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from bench.helpers import answer_questions
from bench.peer_ask import PeerAsk, PeerSaid

MAX_MODEL_LEN = 2048


def start(model_dir: str, options: str = "{}") -> Callable[[PeerAsk], PeerSaid]:
    """Load; return what answers."""
    llm = LLM(model=model_dir, dtype="bfloat16", max_model_len=MAX_MODEL_LEN, seed=0, **json.loads(options))

    def say(asked: PeerAsk) -> PeerSaid:
        params = _params(asked)
        began_s = time.monotonic()
        [made] = llm.generate({"prompt_token_ids": list(asked.prompt)}, params, use_tqdm=False)
        [output] = made.outputs
        return PeerSaid(len(output.token_ids), str(output.finish_reason), time.monotonic() - began_s)

    return say


def _params(asked: PeerAsk) -> SamplingParams:
    form = None
    if asked.schema is not None:
        form = StructuredOutputsParams(json=dict(asked.schema), disable_any_whitespace=True)
    return SamplingParams(
        temperature=asked.temperature,
        seed=0,
        max_tokens=asked.max_tokens,
        stop_token_ids=list(asked.stop_token_ids),
        structured_outputs=form,
    )


def main() -> None:
    """Answer until standard input ends."""
    answer_questions(PeerAsk, start(*sys.argv[1:]))


if __name__ == "__main__":
    main()
