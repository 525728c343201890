"""vLLM with bound answers: `PEER_PYTHON -m bench.structured_vllm_peer MODEL_DIR`, see `helpers` and `peer_env`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from bench.helpers import answer_questions
from bench.token_sets import FormAsked, FormSaid

MAX_MODEL_LEN = 2048


def start(model_dir: str) -> Callable[[FormAsked], FormSaid]:
    """Load; return what answers."""
    llm = LLM(
        model=model_dir,
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        seed=0,
        structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
    )

    def say(asked: FormAsked) -> FormSaid:
        form = StructuredOutputsParams(json=dict(asked.schema), disable_any_whitespace=True)
        params = SamplingParams(temperature=1.0, seed=0, max_tokens=asked.max_tokens, structured_outputs=form)
        began_s = time.monotonic()
        [made] = llm.generate({"prompt_token_ids": list(asked.prompt)}, params, use_tqdm=False)
        [output] = made.outputs
        return FormSaid(len(output.token_ids), str(output.finish_reason), time.monotonic() - began_s, output.text)

    return say


def main() -> None:
    """Answer until standard input ends."""
    answer_questions(FormAsked, start(sys.argv[1]))


if __name__ == "__main__":
    main()
