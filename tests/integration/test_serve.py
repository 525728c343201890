"""`dormouse serve` as a user runs it: a tiny model, OpenAI's own client, a hub, Ctrl-C, and nobody is left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest

from tests.integration.serve_kit import WAIT_S, end, make_model, serving, until_gone
from tests.worker.hub_server import HubServer

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["nut", "nest"]}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that learned nothing, with a tokenizer and a chat template."""
    return make_model(tmp_path_factory.mktemp("models") / "small")


def test_openais_client_talks_to_it_and_ctrl_c_ends_all_of_it(model):
    with serving(model, "--served-model-name", "small") as served:
        client = served.client()
        assert [found.id for found in client.models.list()] == ["small"]
        whole = client.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
        stream = client.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0, stream=True)
        pieces = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(pieces) == whole.choices[0].message.content
        assert whole.usage.completion_tokens == 8
        assert len(served.group()) >= 3  # front, engine, door
        end(served)


@pytest.mark.parametrize("victim", ["dormouse_worker", "dormouse_gateway.standalone"])
def test_whichever_process_dies_takes_the_others_along(model, victim):
    with serving(model, "--max-engine-restarts", "0") as served:
        served.client()
        processes = served.group()
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in processes}
        (hit,) = [pid for pid, words in commands.items() if victim.encode() in words]
        os.kill(hit, signal.SIGTERM if "standalone" in victim else signal.SIGKILL)
        until_gone(processes)


@pytest.fixture(scope="module")
def served(model):
    """A command that serves all tests that leave it as it is; its calls are written as Qwen writes them."""
    with serving(model, "--served-model-name", "small", "--tool-call-parser", "hermes") as one:
        yield one


@pytest.fixture(scope="module")
def client(served) -> Iterator[openai.OpenAI]:
    """Its client."""
    with served.client() as made:
        yield made


def test_the_line_that_it_shows_works_as_it_stands(served, client):  # noqa: ARG001  # the client's address comes first
    line = served.until_said("  try  curl").removeprefix("  try  ")
    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    assert '"object":"chat.completion"' in answer


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_bound_to_a_schema_is_accepted_by_it(client, stream):
    bound = {"type": "json_schema", "json_schema": {"name": "nut", "schema": SCHEMA, "strict": True}}
    asked = {"model": "small", "messages": HI, "temperature": 1, "seed": 7, "n": 4, "response_format": bound}
    texts, ends = [""] * 4, [""] * 4
    if stream:
        for event in client.chat.completions.create(**asked, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason
    else:
        for choice in client.chat.completions.create(**asked).choices:
            texts[choice.index], ends[choice.index] = choice.message.content, choice.finish_reason
    assert ends == ["stop"] * 4
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_anthropics_client_talks_to_it_and_goes_on_with_a_turn(client):
    url = str(client.base_url).removesuffix("/v1/")
    turns = [*HI, {"role": "assistant", "content": "nut nest"}]
    ask = {"model": "small", "max_tokens": 8, "messages": turns, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=WAIT_S) as claude:
        whole = claude.messages.create(**ask)
        with claude.messages.stream(**ask) as stream:
            streamed = stream.get_final_message()
        counted = claude.messages.count_tokens(model="small", messages=turns)
    unlike = {"id": ..., "content": ..., "usage": {"input_tokens", "cache_read_input_tokens"}}
    assert whole.model_dump(exclude=unlike) == streamed.model_dump(exclude=unlike)
    assert whole.content[0].text == streamed.content[0].text
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


class Hide(pydantic.BaseModel):
    """Hide something."""

    kind: Literal["nut", "nest"]
    depth: int = pydantic.Field(ge=0, le=150)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Hide"}}])
def test_a_forced_call_fits_its_schema_streamed_or_not(client, choice):
    """As openai-python's own helpers ask for it and read it; the model learned nothing at all."""
    tools = [openai.pydantic_function_tool(Hide)]
    asked = {"model": "small", "messages": HI, "tools": tools, "tool_choice": choice, "temperature": 1, "seed": 7}
    asked |= {"parallel_tool_calls": False}
    parsed = client.chat.completions.parse(**asked).choices[0]
    assert parsed.finish_reason == "tool_calls"
    (call,) = parsed.message.tool_calls
    assert call.function.name == "Hide"
    assert isinstance(call.function.parsed_arguments, Hide)
    with client.chat.completions.stream(**asked) as stream:
        (same,) = stream.get_final_completion().choices[0].message.tool_calls
    assert same.function.arguments == call.function.arguments
    turns = [*HI, parsed.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    asked |= {"messages": turns, "tool_choice": "none", "max_tokens": 2}
    assert client.chat.completions.create(**asked).choices[0].finish_reason == "length"


def test_an_answer_beside_tools_is_of_its_form_or_calls_with_arguments_that_fit(client):
    bound = {"type": "json_schema", "json_schema": {"name": "nut", "schema": SCHEMA}}
    asked = {"model": "small", "messages": HI, "temperature": 1, "seed": 7, "n": 16, "response_format": bound}
    asked |= {"tools": [openai.pydantic_function_tool(Hide)], "parallel_tool_calls": False}
    ended = {"stop": 0, "tool_calls": 0, "length": 0}  # a model that learned nothing may write blanks to the end
    for choice in client.chat.completions.create(**asked).choices:
        ended[choice.finish_reason] += 1
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        for call in choice.message.tool_calls or () if choice.finish_reason == "tool_calls" else ():
            Hide.model_validate_json(call.function.arguments)
    assert ended["stop"], ended
    assert ended["tool_calls"], ended


def test_a_response_is_the_same_whole_and_streamed_and_is_what_its_schema_says(client):
    bound = {"type": "json_schema", "name": "nut", "schema": {"enum": ["nut", "nest"]}}
    ask = {"model": "small", "input": "hi", "instructions": "nut", "temperature": 0, "text": {"format": bound}}
    whole = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        streamed = stream.get_final_response()
    assert whole.status == streamed.status == "completed"
    assert whole.output_text == streamed.output_text
    assert json.loads(whole.output_text) in {"nut", "nest"}


def test_a_schema_that_cannot_be_kept_is_refused_under_the_name_that_the_client_wrote(client):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 99999989}}, "required": ["a"]}
    bound = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="small", messages=HI, response_format=bound)
    assert caught.value.param == "response_format"


def test_a_hubs_name_is_downloaded_and_answers_under_it(model, tmp_path):
    with HubServer() as hub:
        hub.state.files = {file.name: file.read_bytes() for file in model.iterdir()}
        where = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "DORMOUSE_CACHE": str(tmp_path)}
        with serving("org/tiny", **where) as served:
            client = served.client()
            assert "taking it from the hub, revision main" in served.said
            assert "model.safetensors comes" in served.said
            assert client.completions.create(model="org/tiny", prompt="sleep", max_tokens=2).choices[0].text is not None
        assert (tmp_path / "models" / "org--tiny--main" / "model.safetensors").exists()


def test_what_a_hub_does_not_have_ends_it_with_what_to_do(tmp_path):
    with HubServer() as hub:
        where = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "DORMOUSE_CACHE": str(tmp_path)}
        with serving("org/absent", **where) as served:
            said, _ = served.process.communicate(timeout=WAIT_S)
            assert served.process.returncode == 1
    assert "set HF_TOKEN to a token that may read it" in said or "check the name, ORG/NAME" in said
    assert "error: org/absent could not be downloaded" in said
    assert "Traceback" not in said
