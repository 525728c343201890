"""`dormouse serve` as a user runs it: a tiny model, OpenAI's own client, a hub, Ctrl-C, and nobody is left over."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest

from tests.worker.hub_server import HubServer
from tools.train_model import Recipe, build_model, train_tokenizer

WAIT_S = 110
HI = [{"role": "user", "content": "hi"}]
SMALL = Recipe(vocab_size=320, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["nut", "nest"]}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
FLAGS = ["--max-model-len", "128", "--kv-cache-memory", "8Mi", "--dtype", "float32", "--port", "0", "--http-port", "0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model that learned nothing, with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("models") / "small"
    words = random.Random(1)
    texts = [" ".join(words.choice(("sleep", "wake", "nest", "nut")) for _ in range(20)) for _ in range(50)]
    build_model(SMALL).save_pretrained(folder)
    train_tokenizer(texts, SMALL.vocab_size).save_pretrained(folder)
    return folder


class Serving:
    """The command and its processes, in a process group of their own, as a terminal would have them."""

    def __init__(self, model: str, *flags: str, **environ: str) -> None:
        command = [sys.executable, "-m", "dormouse_cli", "serve", model, *FLAGS, *flags]
        env = {**os.environ, **environ}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.said = ""

    def until_said(self, words: str) -> str:
        """Read until a line has these words; return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"it ended: {self.said}")

    def client(self) -> openai.OpenAI:
        """Return a client of the API, once the model is ready and its address is told."""
        address = self.until_said("OpenAI's API on ").split()[-1]
        return openai.OpenAI(api_key="none", base_url=address, max_retries=0, timeout=WAIT_S)

    def group(self) -> list[int]:
        """Return the processes of the group, threads left out."""
        listed = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
        rows = [tuple(map(int, row.split())) for row in listed.splitlines()]
        return [pid for pid, group in rows if group == self.process.pid]


@contextmanager
def serving(model: str | Path, *flags: str, **environ: str):
    """Run the command while the block runs."""
    one = Serving(str(model), *flags, **environ)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


def until_gone(pids: list[int]) -> None:
    """Wait until all of these have ended. Raises AssertionError for one that has not."""
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([ended], [], [], WAIT_S)[0], pid
        os.close(ended)


def test_openais_client_talks_to_it_and_ctrl_c_ends_all_of_it(model):
    with serving(model, "--served-model-name", "small") as served:
        client = served.client()
        assert [found.id for found in client.models.list()] == ["small"]
        whole = client.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
        stream = client.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0, stream=True)
        pieces = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(pieces) == whole.choices[0].message.content
        assert whole.usage.completion_tokens == 8
        processes = served.group()
        assert len(processes) >= 3  # front, engine, door
        os.killpg(served.process.pid, signal.SIGINT)
        assert served.process.wait(WAIT_S) == 0
        until_gone(processes)


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
