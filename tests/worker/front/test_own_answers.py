"""A checkpoint that describes its answers itself (`response_template`) is read by that, at the worker's door."""

from __future__ import annotations

import json

import grpc

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.testing import write_model
from dormouse_worker.testing.fake_engine import Script
from tests.worker.front.answers.response_corpus import TEMPLATES
from tests.worker.front.test_answer_parts import chat, told

TEMPLATE = "{# <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}A:<t>"
CALLS = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json"}
OWN = {
    "start_anchor": "A:",
    "fields": {"thinking": {"open": "<t>", "close": "</t>"}, "tool_calls": CALLS, "content": {}},
}
CALL = 'H</t>S<tool_call>{"name":"now"}</tool_call>'  # within the tests' 64 tokens, prompt and all
ALL = pb.AnswerParsing(tool_calls=True, reasoning=True)


def write(directory, response_template: object):
    """Write a model whose tokenizer's settings say how its answers are written."""
    path = write_model(directory, template=TEMPLATE)
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "response_template": response_template}))
    return path


async def tokens_of(house, text: str) -> tuple[int, ...]:
    return tuple((await house.tokenize(text)).token_ids)


async def test_answers_are_told_apart_from_what_the_prompt_has_begun(open_house, tmp_path):
    async with open_house(path=write(tmp_path, OWN)) as house:
        described = await house.inference.GetModel(pb.GetModelRequest())
        assert (described.tool_call_parser, described.reasoning_parser) == ("response_template", "response_template")
        tokens = await tokens_of(house, CALL)
        house.engine.engine.script = Script(tokens=tokens)
        messages = await house.collect(chat("now"), answer_parsing=ALL, max_tokens=len(tokens))
        assert told(messages) == {"content": "S", "reasoning": "H", "called": "now", "arguments": "{}"}


async def test_parts_are_the_same_wherever_another_worker_goes_on(open_house, tmp_path):
    async with open_house(path=write(tmp_path, OWN)) as house:
        tokens = await tokens_of(house, CALL)
        house.engine.engine.script = Script(tokens=tokens)
        ask = {"seed": 3, "max_tokens": len(tokens), "answer_parsing": ALL}
        whole = told(await house.collect(chat("now"), **ask))
        for cut in range(1, len(tokens), 7):
            ids = tokens[:cut]
            known = bytes((await house.inference.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text, "utf-8")
            resume = pb.Resume(output_token_ids=ids, emitted_utf8_bytes=len(known))
            rest = told(await house.collect(chat("now"), metadata=proof(Role.GATEWAY), resume=resume, **ask))
            assert all(whole[part].endswith(rest[part]) for part in whole), cut


async def test_what_a_grammar_binds_is_written_as_the_description_reads_it(open_house, tmp_path):
    async with open_house(path=write(tmp_path, OWN)) as house:
        await house.collect(chat("now", strict=True), answer_parsing=ALL, max_tokens=2)
        assert "<tool_call>" in house.engine.engine.received[-1].sampling.grammar.text
        tokens = await tokens_of(house, 'H</t>[{"name":"now","parameters":{}}]')
        house.engine.engine.script = Script(tokens=tokens)
        forced = pb.AnswerParsing(tool_calls=True, reasoning=True, any_function=True)
        said = told(await house.collect(chat("now"), answer_parsing=forced, max_tokens=len(tokens)))
        assert (said["reasoning"], said["called"], said["content"]) == ("H", "now", "")


async def test_strict_calls_are_refused_where_no_family_writes_what_the_description_reads(open_house, tmp_path):
    async with open_house(path=write(tmp_path, TEMPLATES["dialect"])) as house:
        error = await house.refusal(house.collect(chat("now", strict=True), answer_parsing=ALL))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "response_template" in error.details()


async def test_a_request_may_name_another_family(open_house, tmp_path):
    async with open_house(path=write(tmp_path, OWN)) as house:
        tokens = await tokens_of(house, "H</t>[TOOL_CALLS]now[ARGS]{}")
        house.engine.engine.script = Script(tokens=tokens)
        named = pb.AnswerParsing(tool_calls=True, reasoning=True, tool_call_parser="mistral")
        said = told(await house.collect(chat("now"), answer_parsing=named, max_tokens=len(tokens)))
        assert (said["reasoning"], said["called"]) == ("H", "now")


async def why_not_started(open_house, path, **engine: str) -> str:
    """Return what a worker says that cannot begin with its model."""
    async with open_house(path=path, ready=False, engine=engine) as house:
        return (await house.refusal(house.operate("DetermineNumAvailableBlocks"))).details()


async def test_a_description_that_is_not_kept_stops_the_start_unless_the_settings_name_families(open_house, tmp_path):
    path = write(tmp_path, {"start_anchor": "A", "fields": {"citations": {}}})
    said = await why_not_started(open_house, path)
    assert "tokenizer_config.json: response_template.fields.citations is unknown" in said
    assert "--tool-call-parser" in said
    async with open_house(path=path, engine={"tool_call_parser": "hermes", "reasoning_parser": "none"}) as house:
        assert (await house.inference.GetModel(pb.GetModelRequest())).tool_call_parser == "hermes"


async def test_a_family_that_no_package_brings_stops_the_start(open_house, tmp_path):
    said = await why_not_started(open_house, write_model(tmp_path), tool_call_parser="hermse")
    assert "--tool-call-parser is 'hermse'; it is one of auto, none, hermes" in said
