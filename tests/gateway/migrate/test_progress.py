"""How far an answer is, and how its rest is joined on: pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.migrate.progress import Gap, Progress, Splice, is_abort, is_end, read, resumed

BODY = pb.GenerateRequest(model="m", text="a", sampling_params=pb.SamplingParams(n=2, seed=3)).SerializeToString()


def said(index, count, token=7, **fields):
    """Return a message with the choice's token number `count`."""
    made = pb.GenerateResponse(choice_index=index, token_ids=[token], completion_tokens=count, **fields)
    return made.SerializeToString()


def test_progress_tells_tokens_bytes_and_ends_of_each_choice():
    progress = read(BODY, [said(0, 1, text="é"), said(1, 1, finish_reason=1), said(0, 2, text="a")])
    first, second = progress.choices
    assert (list(first.token_ids), first.num_utf8_bytes, first.is_finished) == ([7, 7], 3, False)
    assert (list(second.token_ids), second.num_utf8_bytes, second.is_finished) == ([7], 0, True)
    assert progress.unfinished == [first]
    assert repr(progress) == "Progress(2…, 1.)"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([said(0, 1), said(0, 3)], "choice 0 has 2 tokens where its worker says 3"),
        ([said(0, 1), said(0, 1)], "choice 0 has 2 tokens where its worker says 1"),
        ([said(2, 1)], "choice 2 of 2"),
        ([b"\xff"], "cannot be read"),
    ],
)
def test_messages_that_do_not_follow_each_other_are_no_ground_to_go_on_from(messages, words):
    with pytest.raises(Gap, match=words):
        read(BODY, messages)


def test_the_request_for_the_rest_is_the_same_but_for_one_choice_and_what_it_has():
    unknown = b"\xfa\x3f\x03new"  # field 1023, three bytes
    progress = read(BODY, [said(1, 1, text="é"), said(1, 2)])
    request = pb.GenerateRequest.FromString(resumed(BODY + unknown, progress.choices[1]))
    assert request.resume == pb.Resume(choice_index=1, output_token_ids=[7, 7], emitted_utf8_bytes=2)
    request.ClearField("resume")
    request.sampling_params.n = 2
    assert request.SerializeToString(deterministic=True) == BODY + unknown


def test_a_choice_of_which_nothing_came_is_asked_for_from_its_start():
    request = pb.GenerateRequest.FromString(resumed(BODY, read(BODY, []).choices[0]))
    assert request.HasField("resume")
    assert request.resume == pb.Resume()


def test_the_rest_is_joined_without_a_second_beginning_and_with_one_usage_of_all():
    progress = read(BODY, [said(0, 1, seed=3, request_id="x"), said(1, 1)])
    usage = pb.Usage(prompt_tokens=4, completion_tokens=2, cached_tokens=1)
    rests = [
        pb.GenerateResponse.FromString(
            Splice(progress, choice).join(
                said(choice.index, 2, seed=3, request_id="x", finish_reason=2, usage=usage, text="b")
            )
        )
        for choice in progress.choices
    ]
    assert [rest.HasField("usage") for rest in rests] == [False, True]
    assert rests[1].usage == pb.Usage(prompt_tokens=4, completion_tokens=4, cached_tokens=1)
    assert all(rest.migrated and rest.text == "b" for rest in rests)
    assert not any(rest.HasField("seed") or rest.request_id for rest in rests)


def test_an_end_without_usage_stays_without():
    progress = read(BODY, [said(1, 1, finish_reason=1)])
    rest = Splice(progress, progress.choices[0]).join(said(0, 1, finish_reason=1))
    assert not pb.GenerateResponse.FromString(rest).HasField("usage")


def test_the_rest_of_another_choice_is_a_gap():
    progress = read(BODY, [said(0, 1)])
    with pytest.raises(Gap, match="choice 1 came where 0 was asked for"):
        Splice(progress, progress.choices[0]).join(said(1, 1))


@given(st.integers(0, 6), st.lists(st.integers(0, 3), max_size=6), st.data())
def test_log_probabilities_of_the_prompt_come_once_however_they_are_cut(num_known, sizes, data):
    """The first worker told some; the next one tells all of them again, in other pieces."""
    total = max(num_known, sum(sizes))
    sizes = [*sizes, total - sum(sizes)]
    parts = [pb.PositionLogprobs(sampled=pb.TokenLogprob(token_id=position)) for position in range(total)]
    cut = data.draw(st.integers(0, num_known))
    first = [
        pb.GenerateResponse(prompt_logprobs=part).SerializeToString() for part in (parts[:cut], parts[cut:num_known])
    ]
    progress = read(BODY, first)
    splice = Splice(progress, progress.choices[0])
    told, position = list(range(num_known)), 0
    for size in sizes:
        message = pb.GenerateResponse(prompt_logprobs=parts[position : position + size])
        position += size
        joined = pb.GenerateResponse.FromString(splice.join(message.SerializeToString()))
        told += [part.sampled.token_id for part in joined.prompt_logprobs]
    assert told == list(range(total))


@pytest.mark.parametrize("reason", list(pb.FinishReason.values()))
def test_only_a_choice_that_was_given_up_is_aborted(reason):
    assert is_abort(said(0, 1, finish_reason=reason, text="a")) == (reason == pb.FINISH_REASON_ABORT)


def test_bytes_that_only_look_like_an_abort_are_none():
    """Length of the text, and its first character."""
    raw = pb.GenerateResponse(text="(\x03").SerializeToString()
    assert b"\x28\x03" in raw
    assert not is_abort(raw)


def test_usage_is_the_end():
    assert is_end(said(0, 1, usage=pb.Usage(prompt_tokens=1)))
    assert not is_end(said(0, 1, finish_reason=1))


def test_an_answer_without_choices_lacks_nothing():
    assert Progress(0).unfinished == []
