"""Decide under anything that a message can say; and tokens that a Generate call names."""

import grpc
import pytest
from grpc import aio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.front.testing import write_model
from tests.worker.front.test_decide import PLAIN, PREDICATE

Code = grpc.StatusCode


@pytest.fixture
async def short_house(open_house, tmp_path):
    async with open_house(path=write_model(tmp_path / "plain", template=PLAIN)) as house:
        yield house


async def test_tokens_named_are_told_at_each_position(house):
    messages = await house.collect("hi", logprob_token_ids=[5, 64], max_tokens=2)
    named = [[(one.token_id, one.logprob) for one in part.named] for m in messages for part in m.logprobs]
    assert named == [[(5, -5 / 64), (64, -1.0)]] * 2
    request = next(m for m in house.engine.engine.received if isinstance(m, AddRequest))
    assert (request.sampling.logprobs, request.sampling.logprob_token_ids) == (0, (5, 64))


_words = st.text(max_size=8)
_options = st.lists(st.builds(pb.DecideOption, name=_words, description=_words, label=_words), max_size=5)
_questions = st.lists(
    st.one_of(
        st.builds(pb.DecideQuestion, instructions=_words),
        st.builds(lambda o: pb.DecideQuestion(choice={"options": o}), _options),
        st.builds(lambda o: pb.DecideQuestion(score={"levels": o}), _options),
        st.just(PREDICATE),
    ),
    max_size=4,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(questions=_questions, text=st.text(max_size=20), mass=st.floats(width=32), priority=st.integers(-200, 200))
async def test_whatever_is_asked_is_answered_or_refused(short_house, questions, text, mass, priority):
    request = pb.DecideRequest(questions=questions, text=text, min_label_mass=mass, priority=priority)
    try:
        answer = await short_house.inference.Decide(request, timeout=90)
    except aio.AioRpcError as caught:
        refused = caught.code()
    else:
        refused = None
        assert len(answer.answers) == len(questions)
    assert refused in {None, Code.INVALID_ARGUMENT}
    short_house.front.worker.requests.check_integrity()
    assert len(short_house.front.worker.requests) == 0
