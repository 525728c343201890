"""Streams of the narrators, as a client gets them whole, and what shall be in them."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.moves import NUM_PROMPT_LOGPROBS, STORIES, Narrator

ONE = pb.SamplingParams(seed=5)
ALL = pb.SamplingParams(n=len(STORIES), seed=5)
NUM_MESSAGES = NUM_PROMPT_LOGPROBS + sum(len(story) for story in STORIES)  # of an answer with all choices
DEATHS = ("reset", "draining", "internal", "abort")


@dataclass
class Told:
    """One choice as the client got it."""

    tokens: list = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    ends: list = field(default_factory=list)  # finish reasons: one
    migrated: bool = False


@dataclass
class Answer:
    """Everything the client got."""

    choices: dict = field(default_factory=dict)
    seeds: list = field(default_factory=list)
    usages: list = field(default_factory=list)

    def take(self, message):
        choice = self.choices.setdefault(message.choice_index, Told())
        choice.tokens += message.token_ids
        choice.text += message.text
        choice.logprobs += [part.sampled.logprob for part in message.logprobs]
        choice.prompt_logprobs += [part.sampled.logprob for part in message.prompt_logprobs]
        choice.ends += [message.finish_reason] if message.finish_reason else []
        choice.migrated = choice.migrated or message.migrated
        self.seeds += [message.seed] if message.HasField("seed") else []
        self.usages += [message.usage.completion_tokens] if message.HasField("usage") else []
        assert not self.usages or all(choice.ends for choice in self.choices.values()), "usage stands in the last"


async def answer_of(call):
    answer = Answer()
    while (message := await call.read()) is not aio.EOF:
        answer.take(message)
    return answer


def check_whole(answer, num_choices):
    """Compare with what a worker says that nothing happens to."""
    assert sorted(answer.choices) == list(range(num_choices))
    for index, told in answer.choices.items():
        story = STORIES[index]
        assert told.tokens == [word.token for word in story]
        assert told.text == "".join(word.text for word in story)
        assert told.logprobs == [-word.token / 8 for word in story]
        assert told.prompt_logprobs == (
            [-position / 8 for position in range(NUM_PROMPT_LOGPROBS)] if index == 0 else []
        )
        assert told.ends == [pb.FINISH_REASON_LENGTH]
    assert answer.seeds == [5], "in the first message only"
    assert answer.usages == [sum(len(story) for story in STORIES[:num_choices])]


@asynccontextmanager
async def narrators(count, **how):
    made = [Narrator(name=f"w{index}", **how) for index in range(count)]
    for narrator in made:
        await narrator.start()
    try:
        yield made
    finally:
        for narrator in made:
            await narrator.stop()


def migrated(house, outcome):
    return house.gateway.metrics.value("dormouse_migrated_total", outcome=outcome)


def endpoints(house):
    (deployment,) = house.gateway.router.catalogue.deployments()
    return house.gateway.router.pool.endpoints_of(deployment.key)
