"""What is recorded as right: only answers that are the same alone and in company."""

from __future__ import annotations

import pytest

from tests.prober.cases import Question
from tests.prober.fake_gateway import FakeGateway
from tests.prober.probe import Door
from tests.prober.references import NUM_RECORDED, recorded_cases

PROMPTS = [(index,) for index in range(6)]
TOKENS = tuple(range(11, 75))


@pytest.fixture
async def gateway():
    fake = FakeGateway(TOKENS)
    async with fake.serving() as address:
        door = Door("door", address)
        fake.stub = door.stub
        yield fake
        await door.close()


def in_company(fake, kind):
    """Answer otherwise to the second half of the requests of a kind: those that are asked together."""
    seen = []

    def change(messages):
        request = fake.last
        if request.sampling_params.HasField("seed") == (kind == "sampled"):
            seen.append(request)
            if len(seen) == NUM_RECORDED + 1:
                messages[3].token_ids[0] = 99
        return messages

    fake.change = change


async def test_each_prompt_is_asked_greedily_without_an_end_and_by_a_seed_of_its_own(gateway):
    cases = await recorded_cases(gateway.stub, "tiny", PROMPTS, seed=7)
    some = PROMPTS[:NUM_RECORDED]
    endless = [Question(prompt, is_endless=True) for prompt in some]
    assert [case.question for case in cases] == [*endless, *(Question(p, 7 + i) for i, p in enumerate(some))]
    assert {case.reference for case in cases} == {TOKENS}


async def test_a_sampled_answer_that_is_another_one_in_company_is_left_out(gateway):
    in_company(gateway, "sampled")
    cases = await recorded_cases(gateway.stub, "tiny", PROMPTS, seed=7)
    assert len(cases) == 2 * NUM_RECORDED - 1


async def test_a_greedy_answer_that_is_another_one_in_company_ends_the_run(gateway):
    in_company(gateway, "greedy")
    with pytest.raises(AssertionError, match="a greedy answer is another one in company"):
        await recorded_cases(gateway.stub, "tiny", PROMPTS, seed=7)


def test_a_question_says_how_it_is_continued():
    greedy, endless, sampled = (
        Question((1,)).request("m", 8).sampling_params,
        Question((1,), is_endless=True).request("m", 8).sampling_params,
        Question((1,), seed=3).request("m", 8).sampling_params,
    )
    assert (greedy.temperature, greedy.HasField("seed"), greedy.ignore_eos) == (0, False, False)
    assert (endless.temperature, endless.ignore_eos, endless.frequency_penalty) == (0, True, 0.5)
    assert (round(sampled.temperature, 3), sampled.seed, sampled.max_tokens) == (0.9, 3, 8)
