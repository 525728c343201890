"""What is asked, and what the answer must be: token for token, in float32. Nouns; nothing here talks to anybody."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_api.v1 import inference_pb2 as pb

REFERENCE_TOKENS = 400  # of each case; shorter answers are their beginnings


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how it is continued: greedily, or with this seed and on beyond the end of the text."""

    prompt: tuple[int, ...]
    seed: int | None = None

    def request(self, model: str, max_tokens: int, stream_interval: int = 0) -> pb.GenerateRequest:
        """Return it as a gateway takes it."""
        sampling = pb.SamplingParams(temperature=0, max_tokens=max_tokens)
        if self.seed is not None:
            sampling = pb.SamplingParams(
                temperature=0.9, top_p=0.95, seed=self.seed, max_tokens=max_tokens, ignore_eos=True
            )
        prompt = pb.TokenIds(ids=self.prompt)
        return pb.GenerateRequest(
            model=model, token_ids=prompt, sampling_params=sampling, stream_interval=stream_interval
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A question with its reference: transformers' greedy `generate`, or what the quiet cluster sampled."""

    question: Question
    reference: tuple[int, ...]

    def expected(self, max_tokens: int) -> tuple[int, ...]:
        """Return the tokens of an answer that may have so many. A reference that is shorter has ended by itself."""
        return self.reference[:max_tokens]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the plan. Who sends it looks at nothing but the clock."""

    due_s: float  # from the beginning of the load that it belongs to
    case: int  # which of the prober's cases
    max_tokens: int
    stream_interval: int = 0
