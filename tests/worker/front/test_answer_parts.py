"""What an answer says, thinks and calls comes in its messages, told apart, wherever the answer is cut and goes on."""

from __future__ import annotations

import json

import grpc
import pytest
from google.protobuf import struct_pb2

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import Script

CALL = '<think>H</think>S[TOOL_CALLS]now[ARGS]{"z": "é"}'  # within the tests' 64 tokens
THINKS = "{% for m in messages %}{{ m.role }}{{ m.reasoning_content }}:{{ m.content }}{% endfor %}<think>\n"
ALL = pb.AnswerParsing(tool_calls=True, reasoning=True, tool_call_parser="mistral", reasoning_parser="think")

LLAMA_THINKS = pb.AnswerParsing(
    tool_calls=True, reasoning=True, tool_call_parser="llama3_json", reasoning_parser="think"
)
HARMONY = pb.AnswerParsing(tool_calls=True, tool_call_parser="openai")  # of a model without its tokens


def chat(*names: str, strict: bool = False, **schema: object) -> pb.Chat:
    tools = []
    for name in names:
        tool = struct_pb2.Struct()
        function = {"name": name, "parameters": {"type": "object", **schema}, "strict": strict}
        tool.update({"type": "function", "function": function})
        tools.append(tool)
    return pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")], tools=tools)


def told(messages) -> dict[str, str]:
    """Return what the parts of some messages say."""
    parts = [part for message in messages for part in message.parts]
    return {
        "content": "".join(part.content for part in parts),
        "reasoning": "".join(part.reasoning for part in parts),
        "called": ",".join(part.call.name for part in parts if part.HasField("call")),
        "arguments": "".join(part.arguments.json for part in parts),
    }


async def test_an_answer_is_told_apart_beside_its_text(open_house):
    async with open_house() as house:
        tokens = tuple((await house.tokenize(CALL)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        messages = await house.collect(chat("now"), answer_parsing=ALL, max_tokens=len(tokens))
        assert "".join(message.text for message in messages) == CALL
        assert told(messages) == {"content": "S", "reasoning": "H", "called": "now", "arguments": '{"z":"é"}'}


async def test_parts_are_the_same_wherever_another_worker_goes_on(open_house):
    async with open_house() as house:
        tokens = list((await house.tokenize(CALL)).token_ids)
        house.engine.engine.script = Script(tokens=tuple(tokens))
        for cut in range(1, len(tokens), 3):
            ask = {"seed": 3, "max_tokens": len(tokens), "answer_parsing": ALL}
            stream = house.generate(chat("now"), **ask)
            had = []
            while sum(len(message.token_ids) for message in had) < cut:
                had.append(await stream.read())
            stream.cancel()
            ids = [token for message in had for token in message.token_ids]
            known = "".join(message.text for message in had)
            resume = pb.Resume(output_token_ids=ids, emitted_utf8_bytes=len(known.encode()))
            rest = await house.collect(chat("now"), metadata=proof(Role.GATEWAY), resume=resume, **ask)
            expected = {"content": "S", "reasoning": "H", "called": "now", "arguments": '{"z":"é"}'}
            assert told([*had, *rest]) == expected, cut


@pytest.mark.parametrize("asked", [{}, {"answer_parsing": pb.AnswerParsing(tool_calls=True, reasoning=True)}])
async def test_nothing_is_told_apart_unless_asked_and_of_a_model_without_a_family(open_house, asked):
    async with open_house(Script(tokens=(64, 65))) as house:
        messages = await house.collect(chat("now"), max_tokens=4, **asked)
        assert not any(message.parts or message.parsed for message in messages)
        assert house.engine.engine.received[-1].sampling.grammar is None


async def test_special_tokens_are_no_text_unless_they_are_markers(open_house):
    async with open_house() as house:
        tokens = (*(await house.tokenize("<|user|>a[TOOL_CALLS]now[ARGS]{}")).token_ids,)
        house.engine.engine.script = Script(tokens=tokens)
        messages = await house.collect(chat("now"), answer_parsing=ALL, max_tokens=len(tokens))
        assert told(messages)["content"] == "a"
        assert all(message.parsed for message in messages)


async def test_only_the_first_call_is_told_where_one_is_wanted(open_house):
    async with open_house() as house:
        text = "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]then[ARGS]{}"
        tokens = tuple((await house.tokenize(text)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        parsing = pb.AnswerParsing(tool_calls=True, tool_call_parser="mistral", single_call=True)
        said = told(await house.collect(chat("now"), answer_parsing=parsing, max_tokens=len(tokens)))
        assert (said["called"], said["arguments"], said["content"]) == ("now", "{}", "")


@pytest.mark.parametrize(
    ("prompt", "parsing", "field"),
    [
        ("hi", ALL, "answer_parsing"),
        (chat("now"), pb.AnswerParsing(tool_call_parser="hermse"), "answer_parsing.tool_call_parser"),
        (chat("now"), pb.AnswerParsing(reasoning_parser="hermes"), "answer_parsing.reasoning_parser"),
        (chat("now"), pb.AnswerParsing(function="then"), "answer_parsing.function"),
        (chat(), pb.AnswerParsing(any_function=True), "answer_parsing.any_function"),
        (chat("now", strict=True), LLAMA_THINKS, "chat.tools"),
        (chat("now", strict=True), HARMONY, "chat.tools"),
        (chat("now", "now"), ALL, "chat.tools"),
        (chat("to day"), ALL, "chat.tools"),
        (chat("now", type="array"), pb.AnswerParsing(any_function=True), "chat.tools"),
    ],
)
async def test_what_cannot_be_told_apart_is_refused_by_name(house, prompt, parsing, field):
    error = await house.refusal(house.collect(prompt, answer_parsing=parsing))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.details()


async def test_a_forced_function_gets_the_whole_answer_as_arguments(open_house):
    async with open_house() as house:
        tokens = tuple((await house.tokenize('{"zone": 1}')).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        parsing = pb.AnswerParsing(tool_calls=True, function="now")
        said = told(await house.collect(chat("now"), answer_parsing=parsing, max_tokens=len(tokens)))
        assert (said["called"], json.loads(said["arguments"]), said["content"]) == ("now", {"zone": 1}, "")


async def grammar_of(house, prompt, parsing: pb.AnswerParsing, **ask) -> str:
    """Return the grammar that the engine gets for a request."""
    await house.collect(prompt, answer_parsing=parsing, max_tokens=2, **ask)
    grammar = house.engine.engine.received[-1].sampling.grammar
    return grammar.text if grammar else ""


async def test_a_forced_call_binds_the_answer_by_the_tools_schemas(house):
    tools = chat("now", "then", properties={"zone": {"type": "string"}})
    one = await grammar_of(house, tools, pb.AnswerParsing(tool_calls=True, function="now"))
    assert '"zone"' in one
    assert "parameters" not in one
    whole = await grammar_of(house, tools, pb.AnswerParsing(tool_calls=True, any_function=True))
    assert whole.count('"zone"') == 2
    assert "{0,31}" in whole
    single = await grammar_of(house, tools, pb.AnswerParsing(tool_calls=True, any_function=True, single_call=True))
    assert "{0,31}" not in single


async def test_what_is_strict_binds_calls_in_the_families_own_form(house):
    for family, marker in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("llama3_json", "HEAD")):
        parsing = pb.AnswerParsing(tool_calls=True, tool_call_parser=family)
        assert marker in await grammar_of(house, chat("now", strict=True), parsing)
        assert await grammar_of(house, chat("now"), parsing) == ""


async def test_beside_a_form_calls_are_told_apart_where_a_grammar_knows_them(open_house):
    async with open_house() as house:
        text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
        tokens = tuple((await house.tokenize(text)).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        bound = pb.StructuredOutputs(json_object=True)
        for parser, called in (("hermes", "now"), ("llama3_json", "")):
            parsing = pb.AnswerParsing(tool_calls=True, tool_call_parser=parser)
            ask = {"structured_outputs": bound, "max_tokens": len(tokens)}
            messages = await house.collect(chat("now"), answer_parsing=parsing, **ask)
            assert told(messages)["called"] == called
            assert ("<tool_call>" in house.engine.engine.received[-1].sampling.grammar.text) is bool(called)


async def test_a_forced_call_takes_no_other_form(house):
    bound = pb.StructuredOutputs(json_object=True)
    parsing = pb.AnswerParsing(any_function=True)
    error = await house.refusal(house.collect(chat("now"), answer_parsing=parsing, structured_outputs=bound))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "sampling_params.structured_outputs" in error.details()


async def test_a_bound_answer_thinks_first_where_the_prompt_begins_to(open_house, tmp_path):
    async with open_house(path=write_model(tmp_path, template=THINKS)) as house:
        tokens = tuple((await house.tokenize('Hm.</think>{"a": 1}')).token_ids)
        house.engine.engine.script = Script(tokens=tokens)
        parsing, bound = pb.AnswerParsing(reasoning=True), pb.StructuredOutputs(json_object=True)
        ask = {"answer_parsing": parsing, "structured_outputs": bound, "max_tokens": len(tokens)}
        said = told(await house.collect(chat(), **ask))
        assert (said["reasoning"], said["content"]) == ("Hm.", '{"a": 1}')
        assert "thoughts @body" in house.engine.engine.received[-1].sampling.grammar.text


async def test_what_a_turn_thought_reaches_the_template(open_house, tmp_path):
    async with open_house(path=write_model(tmp_path, template=THINKS)) as house:
        turn = pb.ChatMessage(role="assistant", content="c", reasoning_content="why")
        asked = pb.TokenizeRequest(chat=pb.Chat(messages=[turn]))
        assert (await house.inference.Tokenize(asked)).rendered_text == "assistantwhy:c<think>"
