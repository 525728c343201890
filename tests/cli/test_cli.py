"""The command line against a real gRPC server, as a user calls it."""

# ruff: noqa: N802  the method names are those of the .proto file
import os
import signal
import subprocess
import sys
import threading
from io import StringIO

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_cli.main import app
from dormouse_cli.output import Output
from tests.cli import kit

ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


class Server(rpc.InferenceServicer):
    """Answers with what it is told, and remembers what it was asked."""

    def __init__(self):
        self.requests = []
        self.error = None
        self.stalls = False

    def Generate(self, request, context):
        self.note(request, context)
        yield pb.GenerateResponse(text="Hel")
        if self.stalls:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(30)
        usage = pb.Usage(prompt_tokens=3, completion_tokens=2)
        yield pb.GenerateResponse(text="lo", usage=usage, finish_reason=pb.FINISH_REASON_STOP)

    def Tokenize(self, request, context):
        self.note(request, context)
        return pb.TokenizeResponse(token_ids=[5, 6, 7])

    def GetModel(self, request, context):
        self.note(request, context)
        return pb.GetModelResponse(name="tiny", vocab_size=4096, eos_token_ids=[1, 2], has_chat_template=True)

    def note(self, request, context):
        self.requests.append(request)
        if self.error:
            context.abort_with_status(to_grpc_status(self.error))


@pytest.fixture
def server():
    servicer = Server()
    with kit.serving(servicer) as port:
        servicer.address = f"127.0.0.1:{port}"
        yield servicer


@pytest.fixture
def run(server):
    """Run a command against the server."""

    def invoke(*args, stdin=""):
        return CliRunner().invoke(app, [*args, "--address", server.address, "--model", "tiny"], input=stdin)

    return invoke


def test_generate_writes_the_answer_and_nothing_else_into_a_pipe(run, server):
    result = run("generate", "Say", "--temperature", "0", "--seed", "0", "--max-tokens", "5")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    sampling = pb.SamplingParams(temperature=0, seed=0, max_tokens=5)
    assert server.requests == [pb.GenerateRequest(model="tiny", text="Say", sampling_params=sampling)]


def test_what_is_not_given_is_not_set(run, server):
    run("generate", "Say")
    assert server.requests[0].sampling_params == pb.SamplingParams()


def test_a_dash_reads_the_text_from_the_standard_input(run, server):
    run("generate", "-", stdin="from a pipe")
    assert server.requests[0].text == "from a pipe"


def test_a_chat_remembers_what_was_said(run, server):
    result = run("chat", stdin="Hi\nAgain\n\nnever read\n")
    assert (result.exit_code, result.stdout) == (0, "Hello\nHello\n")
    assert [[message.content for message in request.chat.messages] for request in server.requests] == [
        ["Hi"],
        ["Hi", "Hello", "Again"],
    ]
    assert [message.role for message in server.requests[1].chat.messages] == ["user", "assistant", "user"]


def test_a_chat_ends_with_the_input(run, server):
    assert run("chat", stdin="").exit_code == 0
    assert server.requests == []


def test_tokenize_and_model_are_plain_lines_in_a_pipe(run):
    assert run("tokenize", "abc").stdout == "5 6 7\n"
    lines = run("model").stdout.splitlines()
    assert {"name\ttiny", "vocab_size\t4096", "eos_token_ids\t1 2", "has_chat_template\tTrue"} <= set(lines)


@pytest.mark.parametrize("command", [("generate", "a"), ("tokenize", "a"), ("model",), ("chat",)])
def test_an_error_is_one_line_in_the_servers_words_and_exit_code_1(run, server, command):
    server.error = CallError(grpc.StatusCode.UNAVAILABLE, "default/tiny is asleep", 30.0)
    result = run(*command, stdin="Hi\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: UNAVAILABLE: default/tiny is asleep (try again in 30 s)\n"


def test_an_error_without_a_retry_time_promises_none(run, server):
    server.error = CallError(grpc.StatusCode.INVALID_ARGUMENT, "prompt is empty")
    assert run("generate", "").stderr == "error: INVALID_ARGUMENT: prompt is empty\n"


def test_where_nobody_answers_the_address_is_named():
    result = CliRunner().invoke(app, ["model", "--model", "tiny", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: nothing answers at 127.0.0.1:1: ")


@pytest.mark.parametrize(("option", "value"), [("--seed", "-1"), ("--max-tokens", "0"), ("--seed", str(2**64))])
def test_a_number_that_the_wire_can_not_carry_is_named_with_option_and_limit(run, server, option, value):
    result = run("generate", "a", option, value)
    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert option in words
    assert f"{value} is out of range; allowed are" in words
    assert server.requests == []


def test_all_other_limits_are_left_to_the_server(run, server):
    server.error = CallError(grpc.StatusCode.INVALID_ARGUMENT, "temperature is -1; it must be at least 0")
    assert run("generate", "a", "--temperature", "-1").stderr == f"error: INVALID_ARGUMENT: {server.error}\n"


def test_the_command_line_starts_as_a_module():
    result = subprocess.run([sys.executable, "-m", "dormouse_cli", "--help"], env=ENV, capture_output=True, check=True)
    assert b"generate" in result.stdout


# the children of a background job ignore SIGINT from birth, and then Python does not listen for it either
HEEDING_CTRL_C = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("dormouse_cli", run_name="__main__", alter_sys=True)
"""


def test_an_interrupted_command_ends_quietly_as_shells_expect(server):
    """Ctrl-C in the middle of a stream, sent to a real process."""
    command = [sys.executable, "-c", HEEDING_CTRL_C, "generate", "a", "--model", "m", "--address", server.address]
    server.stalls = True
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(3) == b"Hel", "a pipe gets the first tokens at once"
        process.send_signal(signal.SIGINT)
        _, remarks = process.communicate(timeout=90)
    assert process.returncode == 130
    assert b"Traceback" not in remarks


@pytest.fixture
def terminal():
    """An output on a terminal, with what it shows."""
    out, remarks = (Console(file=StringIO(), force_terminal=True, width=80, color_system=None) for _ in range(2))
    return Output(out, remarks), out.file, remarks.file


def test_people_are_told_how_long_the_answer_is_and_why_it_ended(terminal):
    output, shown, remarks = terminal
    usage, timings = pb.Usage(prompt_tokens=3, completion_tokens=5), pb.Timings(decode_seconds=2.0)
    last = pb.GenerateResponse(text="b", usage=usage, timings=timings, finish_reason=pb.FINISH_REASON_LENGTH)
    output.stream([pb.GenerateResponse(text="a"), last])
    assert shown.getvalue() == "ab\n"
    assert remarks.getvalue() == "[3 + 5 tokens, 2.0 tokens/s, ended by length]\n"


def test_a_models_words_can_not_command_the_terminal(terminal):
    output, shown, _ = terminal
    output.stream([pb.GenerateResponse(text="\x1b[2Jhi\tthere\n[bold]")])
    assert shown.getvalue() == "[2Jhi\tthere\n[bold]\n"


def test_people_see_a_model_as_a_table(terminal):
    output, shown, _ = terminal
    output.model(pb.GetModelResponse(name="tiny"))
    assert next(line.split() for line in shown.getvalue().splitlines()) == ["name", "tiny"]
