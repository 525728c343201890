"""What is asked, and what the answer must be: token for token, in float32. Nouns; nothing here talks to anybody."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_api.v1 import inference_pb2 as pb

GREEDY_TOKENS = 64  # of each reference of a kind; shorter answers are its beginnings
SAMPLED_TOKENS = 64
LONG_TOKENS = 320


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and how it is continued: greedily, sampled by a seed, or greedily without an end and without loops.

    What is sampled by inverse CDF hangs on a sum of rounded numbers for each token, so that long answers are greedy: of
    so many tokens one or the other would depend on the shape of the batch, in float32, too.
    """

    prompt: tuple[int, ...]
    seed: int | None = None
    is_endless: bool = False

    def request(self, model: str, max_tokens: int, stream_interval: int = 0) -> pb.GenerateRequest:
        """Return it as a gateway takes it."""
        sampling = pb.SamplingParams(temperature=0, max_tokens=max_tokens)
        if self.is_endless:
            sampling.MergeFrom(pb.SamplingParams(ignore_eos=True, frequency_penalty=0.5))
        if self.seed is not None:
            sampling.MergeFrom(pb.SamplingParams(temperature=0.9, top_p=0.95, seed=self.seed))
        prompt = pb.TokenIds(ids=self.prompt)
        return pb.GenerateRequest(
            model=model, token_ids=prompt, sampling_params=sampling, stream_interval=stream_interval
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A question with its reference: transformers' greedy `generate`, or what the quiet cluster answered."""

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
