"""The grammar of each family takes what the family's parser reads, and calls that fit their schemas only."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict

import jsonschema
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dormouse_worker.common.grammar import GrammarRefused, compile_grammar, make_tokenizer, mask_of
from dormouse_worker.front.answers.events import CallBegins
from dormouse_worker.front.answers.families import TOOL_FAMILIES
from dormouse_worker.front.answers.harmony import MARKERS as HARMONY_MARKERS
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.text.grammar_text import to_text
from tests.worker.front.answers.corpus import SAMPLES, collected

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "maximum": 20},
        "exact": {"type": "boolean"},
        "unit": {"enum": ["c", "f"], "type": "string"},
        "where": {"$ref": "#/$defs/where"},
    },
    "required": ["city"],
    "$defs": {"where": {"type": ["object", "null"], "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
TOOLS = [("weather", WEATHER), ("now", {"type": "object", "properties": {}})]
SCHEMAS = dict(TOOLS)
BODY = '{"city": "Oslo", "days": 2}'
CALLS = {  # one call of weather, as the family writes it
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {BODY}}}\n</tool_call>',
    "llama3_json": f'{{"name": "weather", "parameters": {BODY}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{BODY}",
    "pythonic": '[weather(city="Oslo", days=2)]',
    "deepseek_v3": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{BODY}\n"
    "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{BODY}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {BODY}}}]',
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "openai": f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{BODY}",
}
OTHER_CALLS = {
    "llama3_json": f'Yes. <|python_tag|>{{"name": "weather", "parameters": {BODY}}}'
    '; {"name": "now", "parameters": {}}',
    "mistral": f'Yes.[TOOL_CALLS] [{{"name": "now", "arguments": {{}}}}, {{"name": "weather", "arguments": {BODY}}}]',
    "pythonic": '<|python_start|>[now(), weather(city="Oslo", exact=True)]<|python_end|>',
    "granite": CALLS["hermes"],
    "openai": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    f" to=functions.weather<|channel|>commentary json<|message|>{BODY}",
}


LIKED = frozenset('"}])>0123456789abcO\\/n{[<')
MARKER = re.compile(r"<[^\s<>=]+>|\[[A-Z_]+\]")


def markers_of(name):
    if name == "openai":
        return sorted(HARMONY_MARKERS)
    family = TOOL_FAMILIES[name]
    return sorted({marker for text in family.markers | family.strict_texts for marker in MARKER.findall(text)})


class Tongue:
    """A tokenizer of bytes and a family's markers, as text or as special tokens, and the family's grammar."""

    def __init__(self, folder, name, *, are_special, tools=TOOLS, **more):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        markers = markers_of(name)
        tokenizer.add_special_tokens(["</s>", *(markers if are_special else ())])
        tokenizer.save(str(folder / "tokenizer.json"))
        self.tokenizer, self.end = tokenizer, tokenizer.token_to_id("</s>")
        self.guide = make_tokenizer(folder / "tokenizer.json", [self.end])
        special = {marker: tokenizer.token_to_id(marker) for marker in markers} if are_special else {}
        self.liked = {tokenizer.token_to_id(key) for key in LIKED}
        self.family = TOOL_FAMILIES.get(name)
        calls = {"form": "channels", "tools": tools, "special": special}
        if self.family:
            forms = [asdict(form) for form in self.family.strict]
            calls = {"form": "tags", "tools": tools, "is_single": False, "forms": forms}
            calls |= {"noise": [*self.family.noise], "thinking": [], "special": special}
        self.calls = calls | more

    def matcher(self, **order):
        return compile_grammar(self.guide, to_text({"kind": "calls", "value": self.calls, **order}))

    def takes(self, text, value=None, **order):
        matcher = self.matcher(**({"value": value, **order} if value is not None else {}))
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def read(self, text):
        parser = AnswerParser(Grammar(tools=self.family, is_harmony=self.family is None), SCHEMAS)
        return [*parser.feed(text), *parser.finish()]


KINDS = [(name, special) for name in CALLS for special in (False, True) if special or name != "openai"]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{'tokens' if kind[1] else 'text'}")
def tongue(request, tmp_path):
    name, are_special = request.param
    made = Tongue(tmp_path, name, are_special=are_special)
    made.name = name
    return made


def test_every_family_has_a_grammar():
    assert set(CALLS) == {*TOOL_FAMILIES, "openai"}


def test_a_call_is_taken_and_read(tongue):
    for text in (CALLS[tongue.name], OTHER_CALLS.get(tongue.name, CALLS[tongue.name])):
        assert tongue.takes(text), text
        said = collected(tongue.read(text))
        assert "weather" in dict(said.calls)


def test_what_does_not_fit_is_not_taken(tongue):
    for text in (CALLS[tongue.name], OTHER_CALLS.get(tongue.name, CALLS[tongue.name])):
        for right, wrong in (("weather", "storm"), ("city", "town")):
            assert not tongue.takes(text.replace(right, wrong)), text
    for right, wrong in (("2", "99"), ("2", "two")):
        assert not tongue.takes(CALLS[tongue.name].replace(right, wrong))


@pytest.mark.parametrize("are_special", [False, True])
def test_a_call_of_mistrals_may_have_an_id_of_nine_letters_and_digits(tmp_path, are_special):
    tongue = Tongue(tmp_path, "mistral", are_special=are_special)
    call = CALLS["mistral"]
    for label, is_taken in (("aB3dE6gH9", True), ("short", False), ("aB3dE6gH9x", False), ("aB3dE6g-9", False)):
        text = call.replace("[ARGS]", f"[CALL_ID]{label}[ARGS]")
        assert tongue.takes(text) == is_taken, label
        if is_taken:
            assert dict(collected(tongue.read(text)).calls)["weather"] == BODY.replace(" ", "")


@pytest.mark.parametrize("name", ["glm45", "qwen3_coder", "pythonic"])
def test_blanks_within_an_argument_are_bounded(tmp_path, name):
    tongue = Tongue(tmp_path, name, are_special=False)
    call = CALLS[name].replace("days", "where")
    for value, is_taken in (('{"x": 2}', True), ('{"x":  2}', False), ('{\n    "x":2}', True), ('{\n\n"x":2}', False)):
        assert tongue.takes(call.replace("2", value)) == is_taken, value


@pytest.mark.parametrize("name", ["glm45", "qwen3_coder", "pythonic"])
def test_blanks_within_an_argument_that_may_be_anything_are_bounded(tmp_path, name):
    tongue = Tongue(
        tmp_path,
        name,
        are_special=False,
        tools=[("weather", {"properties": {"city": {"type": "string"}, "days": True}})],
    )
    for value, is_taken in (('{"x": 2}', True), ('{"x":  2}', False)):
        assert tongue.takes(CALLS[name].replace("2", value)) == is_taken, value


def test_any_other_text_is_taken(tongue):
    lead = "<|channel|>final<|message|>" if tongue.name == "openai" else ""
    for text in ("Hello.", " a", "(x) [1] {2} <a> weather", "äöü\n\n"):
        assert tongue.takes(lead + text), text


def test_text_may_stand_around_calls(tongue):
    if not tongue.family or tongue.family.bare:
        return  # one answer is either
    call = CALLS[tongue.name]
    assert tongue.takes(f"Well. {call} So. {call}")


@pytest.mark.parametrize("sample", ["llama, JSON that is no call", "pythonic, a list"])
def test_what_looks_like_a_call_where_one_could_begin_is_no_text(tmp_path, sample):
    """What begins with a bracket could be read as a call."""
    text = SAMPLES[sample].text
    assert not Tongue(tmp_path, SAMPLES[sample].tools, are_special=True).takes(text)


def test_calls_may_come_instead_of_a_form(tongue):
    if not tongue.family or not tongue.family.may_replace_a_form:
        return
    order = {"kind": "json_object", "disable_any_whitespace": False, "disable_additional_properties": False}
    order["calls"] = tongue.calls
    call = CALLS[tongue.name]
    assert tongue.takes("{}", True, **order)
    assert tongue.takes(call, True, **order)
    assert not tongue.takes(call.replace("city", "town"), True, **order)
    assert not tongue.takes(f"{{}}{call}", True, **order)


def test_whatever_the_grammar_allows_behind_a_name_is_read_as_arguments_that_fit(tongue):
    """A model that presses any key: what it finishes is a call whose arguments are valid."""
    rng, call = random.Random(tongue.name), CALLS[tongue.name]
    lead = call[: call.index("weather") + len("weather")]
    ended = 0
    for _ in range(6):
        text = walk(tongue, lead, rng)
        if text is None:
            continue
        ended += 1
        events = tongue.read(text)
        said = collected(events)
        assert any(isinstance(event, CallBegins) for event in events), text
        for name, arguments in said.calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert ended >= 3, "most walks end"


CLOSINGS = ("</arg_value>\n", "</parameter>\n", '"', ")]", "</tool_call>", "</function>\n</tool_call>")


def allowed_of(tongue, matcher, rng):
    """Return an end that is allowed here, which keys pressed at random would hardly find; [] for none."""
    closing = tongue.tokenizer.encode(rng.choice(CLOSINGS), add_special_tokens=False).ids
    return closing if matcher.validate_tokens(closing) == len(closing) else []


def walk(tongue, lead, rng, most=400):
    """Return a text that goes on at random until it may end, None if it takes too long."""
    ids = tongue.tokenizer.encode(lead, add_special_tokens=False).ids
    matcher = tongue.matcher()
    assert matcher.try_consume_tokens(ids) == len(ids)
    for _ in range(most):
        if matcher.is_accepting():
            return tongue.tokenizer.decode(ids, skip_special_tokens=False)
        if rng.random() < 0.1 and (closing := allowed_of(tongue, matcher, rng)):
            assert matcher.try_consume_tokens(closing) == len(closing)
            ids += closing
            continue
        mask = mask_of(matcher)
        allowed = [i for i in range(tongue.tokenizer.get_vocab_size()) if mask[i // 8] >> (i % 8) & 1]
        liked = [i for i in allowed if i in tongue.liked]
        ids.append(rng.choice(liked or allowed))
        assert matcher.consume_tokens([ids[-1]])
    return None


# --- what cannot be written so ---


def refusal(tmp_path, name, schema, tool="f"):
    with pytest.raises(GrammarRefused) as caught:
        Tongue(tmp_path, name, are_special=True, tools=[(tool, schema)]).matcher()
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{}]}, "anyOf in the parameters of 'f': the model writes properties one by one"),
        ({"additionalProperties": True}, "additionalProperties in the parameters of 'f': false is needed"),
        ({"required": ["a"]}, "the parameters of 'f' require 'a', which is no property"),
        ({"properties": {"a b": {}}}, "the property 'a b' of 'f' has characters"),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "$ref '#/properties/b' in the parameters of 'f'"),
    ],
)
@pytest.mark.parametrize("name", ["pythonic", "glm45", "qwen3_coder"])
def test_parameters_that_are_no_list_of_properties_are_refused(tmp_path, name, schema, words):
    assert words in refusal(tmp_path, name, schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "pattern": "a+"}, "pattern of 'a': the model writes strings as they are"),
        ({"type": "string", "enum": ["</arg_value>"]}, "the options of 'a'"),
        ({"type": "string", "enum": []}, "the options of 'a'"),
        ({"type": "string", "const": 1}, "the options of 'a'"),
    ],
)
def test_strings_that_nothing_binds_are_refused(tmp_path, schema, words):
    assert words in refusal(tmp_path, "glm45", {"properties": {"a": schema}})


def test_a_bare_string_is_as_long_as_its_schema_says(tmp_path):
    schema = {"properties": {"a": {"type": "string", "minLength": 2, "maxLength": 3}}}
    tongue = Tongue(tmp_path, "glm45", are_special=False, tools=[("f", schema)])
    texts = [f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{n * 'é'}</arg_value>\n</tool_call>" for n in range(5)]
    assert [tongue.takes(text) for text in texts] == [False, False, True, True, False]


@pytest.mark.parametrize("name", ["mistral", "deepseek_v3", "pythonic", "openai"])
def test_names_that_cannot_be_written_bare_are_refused(tmp_path, name):
    assert "has characters that the model's calls cannot have" in refusal(tmp_path, name, {}, tool="f>")
