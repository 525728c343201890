"""How a model reads questions, and by what labels it answers."""

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.decisions.questions import asked


def options(count, **fields):
    return [pb.DecideOption(name=f"option {number}", **fields) for number in range(count)]


def choice(*made, instructions="Which?"):
    return pb.DecideQuestion(instructions=instructions, choice=pb.DecideQuestion.Choice(options=made))


def test_a_predicate_is_answered_by_yes_and_no():
    question = pb.DecideQuestion(instructions="Is it spam?", predicate=pb.DecideQuestion.Predicate(if_true="it is"))
    found = asked(question)
    assert found.text == "Question: Is it spam?\nyes: it is\nno\nAnswer with yes or no only."
    assert found.labels == ("yes", "no")


def test_options_have_letters_and_levels_their_numbers():
    made = [pb.DecideOption(name="billing", description="money"), pb.DecideOption(name="other")]
    found = asked(choice(*made))
    assert found.text == "Question: Which?\nA: billing - money\nB: other\nAnswer with the letter of one option only."
    assert found.labels == ("A", "B")
    found = asked(pb.DecideQuestion(score=pb.DecideQuestion.Score(levels=made)))
    assert found.text == "0: billing - money\n1: other\nAnswer with the number of one level only."
    assert found.labels == ("0", "1")


@pytest.mark.parametrize(
    ("count", "first", "last"), [(26, "A", "Z"), (27, "01", "27"), (99, "01", "99"), (255, "001", "255")]
)
def test_no_label_of_many_begins_another(count, first, last):
    labels = asked(choice(*options(count))).labels
    assert (labels[0], labels[-1], len(set(labels))) == (first, last, count)
    assert len({len(label) for label in labels}) == 1


def test_labels_of_the_callers_are_used_as_they_are():
    made = [pb.DecideOption(name="up", label="positive"), pb.DecideOption(name="down", label="negative")]
    found = asked(choice(*made, instructions=""))
    assert found.text == "positive: up\nnegative: down\nAnswer with the label of one option only."
    assert found.labels == ("positive", "negative")
