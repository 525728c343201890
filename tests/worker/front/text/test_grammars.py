"""What callers bind answers by: compiled in processes that may die of it, and refused by field and reason."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import replace

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.testing import EOS, write_model
from dormouse_worker.front.text import grammars as module
from dormouse_worker.front.text.grammar_process import Checker
from dormouse_worker.front.text.grammars import GrammarLimits, Grammars

LIMITS = GrammarLimits(seconds=20.0)  # of a machine that may be busy
PRIME = json.dumps({"type": "integer", "multipleOf": 99999989})  # takes minutes
CHAIN = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(18_000)) + 'r18000: "a"\n'  # overflows a stack


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model")) / "tokenizer.json"


@pytest.fixture
async def make(tokenizer_file):
    made = []

    def grammars(limits=LIMITS, file=tokenizer_file, ends=(EOS,)):
        made.append(Grammars(file, ends, limits))
        return made[-1]

    yield grammars
    for one in made:
        one.close()


async def refusal(grammars, caller="x", **asked):
    """Return the sentence that refuses this."""
    with pytest.raises(CallError) as caught:
        await grammars.compile(pb.StructuredOutputs(**asked), caller)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.message


async def test_who_compiles_stands_back_behind_passes_with_all_its_threads(make):
    grammars = make()
    await grammars.compile(pb.StructuredOutputs(json_object=True), "x")
    (process,) = (each._process for each in grammars._pool._processes if each._process is not None)
    tasks = [int(task) for task in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208  of a kernel, not of a disk
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert len(tasks) > 1
    assert {os.getpriority(os.PRIO_PROCESS, task) for task in tasks} == {max(module.NICENESS, own)}


GOOD = {
    "a schema": {"json_schema": '{"type": "object", "properties": {"é": {"type": "string"}}, "required": ["é"]}'},
    "true": {"json_schema": "true"},
    "an object": {"json_object": True},
    "an expression": {"regex": r"\d{3}-[a-f]+"},
    "choices": {"choice": {"options": ["ja", 'nein "nein"', "\n", "😀"]}},
    "a grammar": {"grammar": 'start: item+\nitem: "a" | /b/'},
    "EBNF": {"grammar": 'root ::= "a" [^b]+ | other\nother ::= "b"{1,3}'},
    "a tag": {"structural_tag": '{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}'},
}


async def test_what_can_be_kept_becomes_a_grammar_with_the_models_end(make):
    grammars = make()
    for asked in GOOD.values():
        grammar = await grammars.compile(pb.StructuredOutputs(**asked), "x")
        assert grammar.end_token_ids == (EOS,)
        assert grammar.text
    assert repr(grammars) == f"Grammars({len(GOOD)} known; 0 at work, Rota(0 of 0 callers))"


TAG = '{"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<f"]}'
REFUSED = {
    "no JSON": ({"json_schema": '{"a": '}, "json_schema is refused (json_schema is no JSON: Expecting value"),
    "false": ({"json_schema": "false"}, "which no text satisfies"),
    "a number": ({"json_schema": "3"}, "json_schema is a JSON int; an object or a boolean is needed"),
    "no number": ({"json_schema": '{"const": NaN}'}, "json_schema is refused (expected value"),
    "unique items": ({"json_schema": '{"uniqueItems": true}'}, 'Unimplemented keys: ["uniqueItems"]'),
    "not": ({"json_schema": '{"not": {}}'}, 'Unimplemented keys: ["not"]'),
    "one of": (
        {"json_schema": '{"oneOf": [{"minLength": 1}, {"maxLength": 2}]}'},
        "oneOf constraints are not supported",
    ),
    "a format": ({"json_schema": '{"type": "string", "format": "quux"}'}, "Unknown format: quux"),
    "elsewhere": ({"json_schema": '{"$ref": "http://example.com/x"}'}, "http://example.com/x"),
    "what no text satisfies": ({"json_schema": '{"allOf": [{"type": "string"}, {"type": "null"}]}'}, "Unsatisfiable"),
    "what needs itself": (
        {"json_schema": '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'},
        "needs itself, which no text satisfies",
    ),
    "no character": ({"regex": r"a[^\s\S]"}, "no text satisfies it"),
    "a grammar that needs itself": ({"grammar": 'start: "a" start'}, "grammar needs itself, which no text satisfies"),
    "EBNF that needs itself": ({"grammar": 'root ::= "a" (root | "b" root)'}, "grammar needs itself"),
    "tag: needs itself": ({"structural_tag": TAG.replace("{}", '{"$ref": "#"}')}, "schema of structure 0 needs itself"),
    "a rule that is itself": ({"grammar": "start: start"}, "no text satisfies"),
    "a loop": (
        {"json_schema": '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}'},
        "refused (",
    ),
    "options": ({"json_schema": '{"x-guidance": {"lenient": true}, "uniqueItems": true}'}, "x-guidance"),
    "nested": ({"json_schema": '{"items":' * 900 + "{}" + "}" * 900}, "recursion limit"),
    "nested deeper": ({"json_schema": '{"items":' * 9000 + "{}" + "}" * 9000}, "json_schema is no JSON"),
    "an open group": ({"regex": "(a"}, "regex is refused (at 1(8): invalid regex"),
    "looking ahead": ({"regex": "a(?=b)"}, "look-around"),
    "going back": ({"regex": r"(a)\1"}, "backreferences"),
    "a name": ({"grammar": "start: nothing"}, 'unknown name: "nothing"'),
    "no start": ({"grammar": "a: /b/"}, "start"),
    "parentheses": ({"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000}, "too deeply nested"),
    "tag: no JSON": ({"structural_tag": "<f>"}, "structural_tag is no JSON"),
    "tag: another kind": (
        {"structural_tag": '{"type": "structural_tag", "format": {}}'},
        "structural_tag is another kind",
    ),
    "tag: no structures": ({"structural_tag": '{"structures": [], "triggers": ["<"]}'}, "structural_tag.structures"),
    "tag: a structure": ({"structural_tag": '{"structures": [{"begin": 1}], "triggers": ["<"]}'}, "tag.structures"),
    "tag: a trigger": ({"structural_tag": TAG.replace('["<f"]', '[""]')}, "structural_tag.triggers"),
    "tag: no trigger": ({"structural_tag": TAG.replace('["<f"]', '["<g"]')}, "structure 0 starts with none"),
    "tag: options": ({"structural_tag": TAG.replace("{}", '{"x-guidance": {}}')}, "x-guidance"),
    "tag: not": ({"structural_tag": TAG.replace("{}", '{"not": {}}')}, 'Unimplemented keys: ["not"]'),
}


async def test_what_cannot_be_kept_is_refused_by_field_and_reason(make):
    grammars = make()
    for case, (asked, words) in REFUSED.items():
        said = await refusal(grammars, **asked)
        assert said.startswith(f"sampling_params.structured_outputs.{next(iter(asked))} is refused ("), case
        assert words in said, case
        assert len(said) < 2200, case


async def test_what_takes_too_long_or_kills_its_process_is_refused_and_the_next_one_is_served(make):
    grammars = make(replace(LIMITS, seconds=0.3))
    assert "took longer than 0.3 s, compiling; allowed are 0.3 s and 256 MiB" in await refusal(
        grammars, json_schema=PRIME
    )
    grammars = make()
    assert "took too much time or memory, compiling" in await refusal(grammars, grammar=CHAIN)
    assert (await grammars.compile(pb.StructuredOutputs(**GOOD["choices"]), "x")).text


async def test_memory_is_bounded(make):
    grammars = make(replace(LIMITS, memory_bytes=16 << 20))
    many = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}})
    assert "too much time or memory" in await refusal(grammars, json_schema=many)


async def test_a_callers_slow_schemas_hold_no_other_callers(make):
    grammars = make()
    slow = [asyncio.create_task(refusal(grammars, "greedy", json_schema=" " * i + PRIME)) for i in range(3)]
    assert (await grammars.compile(pb.StructuredOutputs(**GOOD["choices"]), "modest")).text
    assert not any(task.done() for task in slow)
    grammars.close()
    for task in slow:
        await task


async def test_what_was_asked_before_is_known_a_refusal_too_and_the_oldest_are_forgotten(make, monkeypatch):
    grammars = make()
    bad, good = {"regex": "(a"}, GOOD["choices"]
    said = await refusal(grammars, **bad)
    first = await grammars.compile(pb.StructuredOutputs(**good), "x")
    grammars.close()  # nobody is asked any more
    assert await refusal(grammars, **bad) == said
    assert await grammars.compile(pb.StructuredOutputs(**good), "x") == first
    grammars = make()
    monkeypatch.setattr(module, "MAX_KNOWN_BYTES", 250)
    for letter in "abcdefgh":
        await grammars.compile(pb.StructuredOutputs(regex=letter * 20), "x")
    assert 0 < len(grammars._known) < 3


async def test_a_model_without_an_end_or_a_tokenizer_of_its_own_binds_nothing(make, tmp_path):
    assert "no end-of-sequence token" in await refusal(make(ends=()), regex="a")
    assert "no tokenizer.json of its own" in await refusal(make(file=tmp_path / "tokenizer.json"), regex="a")
    broken = tmp_path / "broken" / "tokenizer.json"
    broken.parent.mkdir()
    broken.write_text("{}")
    assert "tokenizer cannot be bound by grammars" in await refusal(make(file=broken), regex="a")


WORDS = [
    *'{}[]()|*+?.,:"\\/-^$',
    "start",
    "\n",
    "a",
    "%json",
    "%ignore",
    "@x",
    "<f>",
    '"type"',
    '"string"',
    "1e9",
    "é",
    "\0",
]
FLAGS = {"disable_any_whitespace": False, "disable_additional_properties": True}


def test_whatever_is_asked_is_a_grammar_or_a_refusal(tokenizer_file):
    checker, draw = Checker(str(tokenizer_file), [EOS]), random.Random(7)
    schema_words = ["type", "enum", "properties", "items", "required", "anyOf", "allOf", "$ref", "pattern", "minLength"]

    def value(depth):
        leaves = [None, True, -1, 1e300, "", "string", "#/x", "[a", [], {}]
        if depth == 0:
            return draw.choice(leaves)
        inner = [
            lambda: value(depth - 1),
            lambda: [value(depth - 1)],
            lambda: {draw.choice(schema_words): value(depth - 1)},
        ]
        return draw.choice(inner)()

    for _ in range(300):
        text = "".join(draw.choices(WORDS, k=draw.randrange(12)))
        kind = draw.choice(["regex", "grammar", "structural_tag", "json_schema"])
        asked = json.dumps({draw.choice(schema_words): value(3)}) if kind == "json_schema" else text
        answer = checker.answer({"kind": kind, "value": asked, **FLAGS})
        assert set(answer) in ({"text"}, {"refused"}), asked


def test_a_grammar_names_special_tokens_and_text_that_looks_like_one_is_text(tokenizer_file):
    checker = Checker(str(tokenizer_file), [EOS])
    lark = 'start: </s> "</s> \\" </s>" /<s>\\/</ <|user|> // <s>\n'
    answer = checker.answer({"kind": "grammar", "value": lark})
    assert answer == {"text": lark.replace("start: </s>", "start: <[257]>").replace("<|user|>", "<[258]>")}
    assert "unknown special token" in checker.answer({"kind": "grammar", "value": "start: <nobody>"})["refused"]


def test_objects_that_do_not_say_so_are_closed_on_request(tokenizer_file):
    checker = Checker(str(tokenizer_file), [EOS])
    parts = {"a": {"type": "object"}, "b": {"properties": {}, "additionalProperties": True}}
    asked = {
        "kind": "json_schema",
        "value": json.dumps({"type": "object", "properties": parts, "anyOf": [True]}),
        **FLAGS,
    }
    closed = json.loads(checker.answer(asked)["text"])["grammars"][0]["json_schema"]
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"]["additionalProperties"] is False
    assert closed["properties"]["b"]["additionalProperties"] is True
