"""The command `dormouse`. Only reads arguments and says errors; each command is one call of `client`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_cli.chat import Conversation
from dormouse_cli.client import Client, connected
from dormouse_cli.errors import CommandFailed
from dormouse_cli.output import Output
from dormouse_cli.serve import worker_command

_INTERRUPTED = 130  # as shells say it: 128 + SIGINT

app = typer.Typer(
    name="dormouse",
    help="Talk to models that Dormouse serves, or serve one on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _within(least: int, most: int) -> Callable[[int | None], int | None]:
    """Return a check of what the wire can carry. All other limits are the server's, which names them."""

    def check(value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise typer.BadParameter(f"{value} is out of range; allowed are {least} to {most}")
        return value

    return check


Address = Annotated[str, typer.Option(envvar="DORMOUSE_ADDRESS", help="Gateway (or worker) as host:port.")]
Model = Annotated[str, typer.Option(envvar="DORMOUSE_MODEL", help="Name of the model, or namespace/name.")]
Prompt = Annotated[str, typer.Argument(help="The text; - reads it from the standard input.")]
Temperature = Annotated[float | None, typer.Option(help="0 = always the likeliest token.")]
TopP = Annotated[float | None, typer.Option(help="Smallest set of tokens with this probability.")]
MaxTokens = Annotated[int | None, typer.Option(callback=_within(1, 2**32 - 1), help="Most tokens of an answer.")]
Seed = Annotated[int | None, typer.Option(callback=_within(0, 2**64 - 1), help="The same seed gives the same answer.")]
Timeout = Annotated[float, typer.Option(help="Most seconds that an answer may take.")]

DEFAULT_ADDRESS = "127.0.0.1:50051"


@app.command()
def generate(  # noqa: PLR0913, PLR0917  # a command's parameters are its options
    text: Prompt,
    model: Model,
    address: Address = DEFAULT_ADDRESS,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    timeout: Timeout = 600.0,
) -> None:
    """Continue a text, token by token."""
    sampling = pb.SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    with _session(address, model, timeout) as session:
        request = pb.GenerateRequest(text=_read(text), sampling_params=sampling)
        session.output.stream(session.client.generate(request))


@app.command()
def chat(
    model: Model,
    address: Address = DEFAULT_ADDRESS,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    timeout: Timeout = 600.0,
) -> None:
    """Talk with a model; an empty line or Ctrl-D ends it."""
    sampling = pb.SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    with _session(address, model, timeout) as session:
        conversation = Conversation(session.client, sampling)
        for line in _lines(session.output):
            session.output.stream(conversation.say(line))


@app.command()
def tokenize(text: Prompt, model: Model, address: Address = DEFAULT_ADDRESS) -> None:
    """Show the tokens of a text. Works while the model sleeps."""
    with _session(address, model) as session:
        session.output.token_ids(session.client.tokenize(_read(text)))


@app.command("model")
def describe(model: Model, address: Address = DEFAULT_ADDRESS) -> None:
    """Show what a model is. Works while it sleeps."""
    with _session(address, model) as session:
        session.output.model(session.client.model())


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Directory with config.json, tokenizer and *.safetensors.")],
) -> None:
    """Run one model on this machine, without Kubernetes, until Ctrl-C.

    Every flag of dormouse-worker may follow the model: --port, --host, --max-model-len, --dtype, --max-num-seqs,
    --gpu-memory-utilization, --kv-cache-memory, --swap-space, --served-model-name, …; `dormouse serve MODEL --help`
    describes them all.
    """
    with _said_errors(Output(Console(), Console(stderr=True))):
        command = worker_command(model, context.args)
        os.execv(command[0], command)  # noqa: S606  no shell is meant


def main() -> None:
    """Run the command line."""
    app()


@dataclass(frozen=True, slots=True)
class _Session:
    """What a command works with."""

    client: Client
    output: Output


@contextmanager
def _session(address: str, model: str, timeout_s: float = 30.0) -> Iterator[_Session]:
    """Connect, and say errors."""
    output = Output(Console(), Console(stderr=True))
    with _said_errors(output), connected(address=address, model=model, timeout_s=timeout_s) as client:
        yield _Session(client, output)


@contextmanager
def _said_errors(output: Output) -> Iterator[None]:
    """Say errors in one line and end with 1."""
    try:
        yield
    except CommandFailed as error:
        output.error(str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(_INTERRUPTED) from error


def _read(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _lines(output: Output) -> Iterator[str]:
    """Yield what the user says, until an empty line or the end of the input."""
    while True:
        try:
            line = output.ask()
        except EOFError:
            return
        if not line.strip():
            return
        yield line
