"""What models of each family write is told apart; the same comes out however the text is cut."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.front.answers.events import Arguments
from dormouse_worker.front.answers.families import HARMONY, TOOL_FAMILIES
from dormouse_worker.front.answers.parser import AnswerParser
from tests.worker.front.answers.corpus import SAMPLES, TOOLS, Sample, collected

NUM_SPLITS = 60
NUM_SPLITS_OF_A_FAMILY = 10_000
FAMILIES = (*TOOL_FAMILIES, HARMONY, "think")


def pieces_of(text: str, rng: random.Random) -> list[str]:
    """Return the text in pieces of random lengths."""
    cuts = sorted(rng.sample(range(len(text) + 1), rng.randint(0, min(len(text), 12))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_model_says_thinks_and_calls_is_told_apart(name: str):
    sample = SAMPLES[name]
    parser = sample.parser()
    assert collected([*parser.feed(sample.text), *parser.finish()]) == sample.says


@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_in_pieces_says_the_same(name: str):
    sample, rng = SAMPLES[name], random.Random(name)
    for pieces in ([*sample.text], *(pieces_of(sample.text, rng) for _ in range(NUM_SPLITS))):
        parser = sample.parser()
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert collected([*events, *parser.finish()]) == sample.says, pieces


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_ten_thousand_splits_of_a_familys_answers_say_the_same(family: str):
    rng = random.Random(family)
    samples = [sample for sample in SAMPLES.values() if family in {sample.tools, sample.reasoning}]
    for number in range(NUM_SPLITS_OF_A_FAMILY):
        sample = samples[number % len(samples)]
        parser, pieces = sample.parser(), pieces_of(sample.text, rng)
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert collected([*events, *parser.finish()]) == sample.says, pieces


@pytest.mark.parametrize("name", SAMPLES)
def test_arguments_are_json_wherever_the_text_ends(name: str):
    sample = SAMPLES[name]
    for end in range(len(sample.text)):
        parser = sample.parser()
        said = collected([*parser.feed(sample.text[:end]), *parser.finish()])
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in said.calls), sample.text[:end]


@pytest.mark.parametrize("name", SAMPLES)
def test_an_answer_goes_on_elsewhere_after_any_character(name: str):
    """Another worker feeds what the client has, tells nothing of it, and goes on."""
    sample = SAMPLES[name]
    for cut in range(len(sample.text)):
        first, second = sample.parser(), sample.parser()
        told = first.feed(sample.text[:cut])
        second.feed(sample.text[:cut])
        assert collected([*told, *second.feed(sample.text[cut:]), *second.finish()]) == sample.says


@pytest.mark.parametrize("name", ["hermes twice", "llama, close together", "pythonic"])
def test_only_the_first_call_is_told_where_one_is_wanted(name: str):
    sample = SAMPLES[name]
    parser = AnswerParser(replace(sample.grammar, is_single=True), TOOLS)
    said = collected([*parser.feed(sample.text), *parser.finish()])
    assert said == replace(sample.says, calls=sample.says.calls[:1])
    assert parser.num_calls == len(sample.says.calls)


def test_arguments_come_while_they_are_written():
    parser = SAMPLES["hermes"].parser()
    parser.feed('<tool_call>{"name": "weather", "arguments": {"city": "Os')
    assert parser.feed("lo, the") == [Arguments(0, "lo, the")]


PARTS = [*'{}[]()",:\\<>|=/ \n', "a", "1", "é", "\\u00", "<tool_call>", '"name"', '"arguments"', "</think>"]


@given(text=st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
def test_nothing_that_a_model_writes_breaks_a_parser(text: str):
    for name in (*TOOL_FAMILIES, HARMONY):
        for lead in ("", '<tool_call>{"name": "weather", "arguments": ', "[TOOL_CALLS]weather[ARGS]", "[weather(city="):
            sample = Sample(lead + text, SAMPLES["plain"].says, name, "think")
            whole, cut = sample.parser(), sample.parser()
            said = collected([*whole.feed(sample.text), *whole.finish()])
            events = [event for character in sample.text for event in cut.feed(character)]
            assert collected([*events, *cut.finish()]) == said
            for _, arguments in said.calls:
                assert isinstance(json.loads(arguments), dict)
