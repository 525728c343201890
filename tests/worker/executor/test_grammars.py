"""Answers that grammars bind: whatever a model of random weights wants, each that ends is what was asked for.

The same tokens alone, among others, in chunks, and after a resume at any token.
"""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.model.testing import EOS
from tests.worker.executor.grammar_kit import BYTES, PROMPT, BoundRank, grammar, schema

WAYS = {
    "our kernels": {},
    "torch": {"attention_backend": "sdpa"},
    "tokens promised": {"worker": "own memory"},
    "no torch": {"worker": "no torch"},
}
WORD = {"type": "string", "pattern": "^[a-z]{1,4}$"}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "null"},
    {"const": {"a": [1, None]}},
    {"enum": ["red", "green", 3, None, "été 😀"]},
    {"const": "</s><|user|>"},  # names of special tokens
    DIGIT,
    {"type": "integer", "minimum": -7, "maximum": 7},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    WORD,
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "array", "items": DIGIT, "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [WORD, DIGIT], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2},
    {"type": "object", "properties": {"a": WORD, "b": DIGIT}, "required": ["a", "b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": WORD, "b": DIGIT}, "additionalProperties": False},
    {
        "type": "object",
        "properties": {'é"\\\n': {"type": "null"}},
        "required": ['é"\\\n'],
        "additionalProperties": False,
    },
    {"type": "object", "patternProperties": {"^[ab]$": DIGIT}, "additionalProperties": False, "minProperties": 1},
    {"oneOf": [{"type": "null"}, DIGIT]},
    {"anyOf": [WORD, DIGIT, {"type": "null"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    {"$defs": {"w": WORD}, "type": "array", "items": {"$ref": "#/$defs/w"}, "maxItems": 2},
    {
        "$defs": {
            "list": {
                "type": "object",
                "properties": {"v": DIGIT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}},
                "required": ["v", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/list",
    },
]
PERSON = SCHEMAS[16]


@pytest.fixture(scope="module")
def ranks(tiny_model):
    """Return a function that gives the rank of a way, made once."""
    made = {}

    def rank(way):
        if way not in made:
            made[way] = BoundRank(tiny_model, **WAYS[way])
        return made[way]

    yield rank
    for one in made.values():
        one.close()


@pytest.fixture
def rank(ranks):
    """Return the rank of the fastest way."""
    return ranks("our kernels")


@pytest.mark.parametrize("way", WAYS)
def test_every_answer_that_ends_is_what_its_schema_accepts(ranks, way):
    rank, asked = ranks(way), {}
    for number, value in enumerate(SCHEMAS):
        for seed in range(4):
            name = rank.add(schema(value), seed=100 * number + seed, temperature=0.5 * seed)
            asked[name] = value
    answers = rank.finish()
    ended = [name for name in asked if answers[name].finish_reason == "stop"]
    for name in ended:
        jsonschema.validate(json.loads(answers[name].text), asked[name])
    assert not any(answers[name].refusal for name in asked)
    assert len(ended) > 0.8 * len(asked), {
        str(asked[name]): answers[name].token_ids for name in set(asked) - set(ended)
    }


def test_an_answer_is_one_of_the_choices_matches_the_expression_or_follows_the_grammar(rank):
    options = ["yes", "no", 'say "no"\n', "ça 😀"]
    lark = 'start: "<" ITEM ("," ITEM)? ">"\nITEM: /[0-9]{2}/'
    tag = {"structures": [{"begin": "<f>", "schema": DIGIT, "end": "</f>"}], "triggers": ["<f"]}
    for seed in range(5):
        assert rank.answer(grammar("choice", options), seed=seed).text in options
        assert re.fullmatch("[ab]{3}-?[0-9]+x", rank.answer(grammar("regex", "[ab]{3}-?[0-9]{1,4}x"), seed=seed).text)
        assert re.fullmatch("<[0-9]{2}(,[0-9]{2})?>", rank.answer(grammar("grammar", lark), seed=seed).text)
        tagged = rank.answer(grammar("structural_tag", json.dumps(tag)), seed=seed, max_tokens=40).text
        assert all(re.match("<f>[0-9]{1,2}($|<)", part) for part in re.findall("<f.*", tagged))
    assert isinstance(json.loads(rank.answer(grammar("json_object", True), seed=4, logit_bias={92: 9.0}).text), dict)


def test_a_model_that_prefers_blanks_to_all_else_comes_to_the_end(rank):
    likes = {BYTES.index(byte): 100.0 for byte in b" \t\n\r"}
    number = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    for bound_by in (
        grammar("json_schema", json.dumps({**number, "additionalProperties": False})),
        grammar("json_object", True),
        grammar("calls", {"form": "arguments", "tools": [("call", number)]}),
    ):
        answer = rank.answer(bound_by, temperature=0.0, logit_bias=likes, max_tokens=100)
        assert answer.finish_reason == "stop", answer.text
        assert "\n" in answer.text
        assert isinstance(json.loads(answer.text), dict)


def test_the_end_of_a_grammar_is_a_stop_whatever_else_is_asked(rank):
    yes = grammar("choice", ["yes"])
    for asked in ({}, {"min_tokens": 30}, {"stop_token_ids": ()}, {"n": 1, "temperature": 0.0}):
        answer = rank.answer(yes, **{key: value for key, value in asked.items() if key != "n"})
        assert (answer.text, answer.finish_reason) == ("yes", "stop"), asked


def test_an_answer_goes_on_until_min_tokens_where_the_grammar_can(rank):
    answer = rank.answer(grammar("regex", "a*"), min_tokens=12, max_tokens=20)
    assert set(answer.text) == {"a"}
    assert len(answer.text) >= 12
    cut = rank.answer(grammar("regex", "a{50}"), max_tokens=7)
    assert (cut.text, cut.finish_reason) == ("aaaaaaa", "length")


def test_log_probabilities_are_those_of_the_model_not_of_the_mask(rank):
    answer = rank.answer(grammar("choice", ["yes"]), logprobs=2)
    assert len(answer.logprobs) == 4
    assert all(row.sampled < -0.01 for row in answer.logprobs), "the model did not want to say yes"


def test_characters_that_name_a_special_token_are_characters(rank):
    for bound_by in (schema({"const": "</s>"}), grammar("regex", '"</s>"'), grammar("choice", ['"</s>"'])):
        answer = rank.answer(bound_by)
        assert (answer.text, answer.finish_reason, len(answer.token_ids)) == ('"</s>"', "stop", 7)


def test_penalties_and_bias_choose_among_what_is_allowed_and_nothing_allows_what_is_not(rank):
    two = grammar("choice", ["aaaa", "bbbb"])
    a, b, z = (BYTES.index(ord(char)) for char in "abz")
    assert rank.answer(two, logit_bias={b: 100.0, z: 100.0}).text == "bbbb"
    assert rank.answer(two, logit_bias={a: 100.0}, frequency_penalty=2.0, repetition_penalty=50.0).text == "aaaa"


@pytest.mark.parametrize("way", WAYS)
def test_a_request_whose_own_masks_leave_nothing_ends_with_the_reason_and_no_other_does(ranks, way):
    rank = ranks(way)
    a, b = (BYTES.index(ord(char)) for char in "ab")
    start = len(rank._sent)
    stuck = [
        rank.add(grammar("choice", ["abc"]), allowed_token_ids=(b,)),
        rank.add(grammar("choice", ["abc"]), bad_words_token_ids=((a, b),)),
    ]
    free, bound = rank.add(None, max_tokens=5), rank.add(grammar("choice", ["abc"]))
    answers = rank.finish(start)
    assert [answers[name].refusal[:36] for name in stuck] == ["nothing that the grammar allows is l"] * 2
    assert [len(answers[name].token_ids) for name in stuck] == [0, 1]
    assert (answers[bound].text, len(answers[free].token_ids)) == ("abc", 5)


def test_a_grammar_that_cannot_be_compiled_ends_its_own_request(rank):
    start = len(rank._sent)
    broken, fine = rank.add(Grammar("start: nothing", (257,))), rank.add(grammar("choice", ["yes"]))
    answers = rank.finish(start)
    assert "unknown name" in answers[broken].refusal
    assert answers[fine].text == "yes"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "asked", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.5}], ids=str
)
def test_a_resume_after_any_token_goes_on_with_the_same_tokens(ranks, way, asked):
    rank, bound_by = ranks(way), schema(PERSON)
    whole = rank.answer(bound_by, **asked)
    assert whole.finish_reason == "stop"
    start = len(rank._sent)
    names = {rank.add(bound_by, resumed=whole.token_ids[:cut], **asked): cut for cut in range(len(whole.token_ids))}
    for name, answer in rank.finish(start).items():
        assert whole.token_ids[: names[name]] + answer.token_ids == whole.token_ids


ASKED = [
    {"temperature": 0.0},
    {"temperature": 1.3, "top_p": 0.9, "seed": 8, "choice_index": 2},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
    {"min_tokens": 25},
    {"stop_token_ids": (EOS, BYTES.index(ord("e")))},
    {"max_tokens": 7},
    {"logit_bias": {BYTES.index(ord("a")): 5.0}},
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_forced_tokens_are_those_that_come_one_by_one(ranks, way, asked):
    rank, start = ranks(way), len(ranks(way)._sent)
    names = [
        (rank.add(schema(value), **asked), rank.add(schema(value), **asked, logprobs=0)) for value in SCHEMAS
    ]  # whoever asks what the model thought of each token gets them one by one
    answers = rank.finish(start)
    for together, apart in names:
        assert answers[together].token_ids == answers[apart].token_ids
        assert answers[together].finish_reason == answers[apart].finish_reason
        assert answers[apart].num_passes == len(answers[apart].token_ids)
    assert sum(answers[together].num_passes for together, _ in names) < sum(
        0.8 * answers[apart].num_passes for _, apart in names
    )


@pytest.mark.parametrize("asked", [{"allowed_token_ids": tuple(range(250))}, {"bad_words_token_ids": ((0, 1),)}])
def test_who_has_masks_of_his_own_gets_each_token_from_a_pass(rank, asked):
    answer = rank.answer(schema(PERSON), **asked)
    assert answer.num_passes == len(answer.token_ids)


@pytest.mark.parametrize("way", WAYS)
def test_alone_among_others_and_in_chunks_the_tokens_are_the_same(ranks, way):
    rank = ranks(way)
    asked = [(SCHEMAS[number], {"seed": number, "prompt": [*PROMPT, number]}) for number in range(12)]
    alone = [rank.answer(schema(value), **fields).token_ids for value, fields in asked]
    start = len(rank._sent)
    names = []
    for value, fields in asked:
        names.append(rank.add(schema(value), **fields))
        rank.add(None, prompt=[*range(100, 170)], max_tokens=9)
    answers = rank.finish(start)
    assert [answers[name].token_ids for name in names] == alone


OWN_WAY = """
from dormouse_worker.executor.worker.cpu_worker import CpuWorker

class OwnWay(CpuWorker):
    def execute_model(self, batch):
        return super().execute_model(batch)
"""


def test_a_worker_that_samples_in_a_way_of_its_own_refuses_instead_of_ignoring(tiny_model, own_module):
    rank = BoundRank(tiny_model, worker_cls=f"{own_module('sampling_apart', OWN_WAY)}.OwnWay")
    assert "OwnWay does not bind what it samples" in rank.answer(grammar("choice", ["yes"])).refusal
    rank.close()
