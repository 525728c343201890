"""Answers that move from worker to worker, and whether the parts are the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb

PROMPT = list(range(300, 340))


@dataclass
class Choice:
    """One choice as the client got it."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    end: tuple[int, str] = (0, "")
    migrated: bool = False


@dataclass
class Answer:
    """One stream as the client got it."""

    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_logprobs: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    usages: list[tuple[int, int]] = field(default_factory=list)

    def num_tokens(self) -> int:
        """Return how many tokens every choice has at least, of those that said anything."""
        return min((len(choice.tokens) for choice in self.choices.values()), default=0)

    def take(self, message: pb.GenerateResponse) -> None:
        """Add a message."""
        choice = self.choices.setdefault(message.choice_index, Choice())
        choice.tokens += message.token_ids
        choice.text += message.text
        for part in message.logprobs:
            choice.logprobs += [part.sampled.logprob, *(top.logprob for top in part.top)]
        if message.finish_reason:
            choice.end, choice.migrated = (message.finish_reason, message.matched_stop), message.migrated
        if not message.token_ids:
            assert not message.logprobs
        else:
            assert message.completion_tokens == len(choice.tokens)
        self.prompt_logprobs += [part.sampled.logprob for part in message.prompt_logprobs]
        self.seeds += [message.seed] if message.HasField("seed") else []
        if message.HasField("usage"):
            self.usages.append((message.usage.prompt_tokens, message.usage.completion_tokens))


def check_same(told, whole):
    """Compare with the run to which nothing happened, but for whether it moved."""
    assert sorted(told.choices) == sorted(whole.choices)
    for index, choice in whole.choices.items():
        other = told.choices[index]
        assert other.tokens == choice.tokens
        assert other.text == choice.text
        assert other.logprobs == pytest.approx(choice.logprobs, abs=1e-4)
        assert other.end == choice.end
    assert told.prompt_logprobs == pytest.approx(whole.prompt_logprobs, abs=1e-4)
    assert (told.seeds, told.usages) == (whole.seeds, whole.usages)


class Reader:
    """Reads one stream, in two parts."""

    def __init__(self, house, params, prompt=PROMPT):
        request = pb.GenerateRequest(model="tiny", token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
        self.call = house.stub.Generate(request, timeout=120)
        self.answer = Answer()
        self._num_choices = params.n or 1

    async def begin(self, num_tokens):
        """Read until every choice has so many tokens."""
        while len(self.answer.choices) < self._num_choices or self.answer.num_tokens() < num_tokens:
            self.answer.take(await self.call.read())

    async def read(self):
        """Read to the end."""
        while (message := await self.call.read()) is not aio.EOF:
            self.answer.take(message)
        return self.answer
