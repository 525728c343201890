"""`generate`, `chat`, `tokenize`, `model`, `serve`: talking to a model, or serving one on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dormouse_cli.options import Address, ApiKey, Context, Kubeconfig, Model, Namespace, Tls, TlsCa
from dormouse_cli.session import said_errors, way_of, world_of

if TYPE_CHECKING:  # grpc and rich are imported by the commands that need them
    from dormouse_api.client import Client
    from dormouse_cli.output import Output
    from dormouse_cli.reach import Way


def _within(least: int, most: int) -> Callable[[int | None], int | None]:
    """Return a check of what the wire can carry. All other limits are the server's, which names them."""

    def check(value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise typer.BadParameter(f"{value} is out of range; allowed are {least} to {most}")
        return value

    return check


Prompt = Annotated[str, typer.Argument(help="The text; - reads it from standard input.")]
Temperature = Annotated[float | None, typer.Option(help="0 = always the most likely token.")]
TopP = Annotated[float | None, typer.Option(help="Sample from the smallest set of tokens with this probability.")]
MaxTokens = Annotated[int | None, typer.Option(callback=_within(1, 2**32 - 1), help="Maximum tokens of an answer.")]
Seed = Annotated[int | None, typer.Option(callback=_within(0, 2**64 - 1), help="The same seed gives the same answer.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that an answer may take.")]


def generate(
    context: typer.Context,
    text: Prompt,
    model: Model,
    address: Address = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    timeout: Timeout = 600.0,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Continue a text, streaming the answer."""
    from dormouse_api.v1 import inference_pb2 as pb

    sampling = pb.SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    with _session(context, way, model, timeout) as session:
        request = pb.GenerateRequest(model=session.model, text=_read(text), sampling_params=sampling)
        session.output.stream(session.client.generate(request))


def chat(
    context: typer.Context,
    model: Model,
    address: Address = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    timeout: Timeout = 600.0,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Chat with a model; an empty line or Ctrl-D ends it."""
    from dormouse_api.v1 import inference_pb2 as pb
    from dormouse_cli.chat import Conversation

    sampling = pb.SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    with _session(context, way, model, timeout) as session:
        conversation = Conversation(session.client, session.model, sampling)
        for line in _lines(session.output):
            session.output.stream(conversation.say(line))


def tokenize(
    context: typer.Context,
    text: Prompt,
    model: Model,
    address: Address = None,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show the tokens of a text. Works while the model sleeps."""
    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    with _session(context, way, model) as session:
        session.output.token_ids(session.client.tokenize(_read(text), model=session.model))


def describe(
    context: typer.Context,
    model: Model,
    address: Address = None,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show a model's properties. Works while it sleeps."""
    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    with _session(context, way, model) as session:
        session.output.model(session.client.get_model(session.model))


def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Directory with config.json, tokenizer and *.safetensors; or ORG/NAME on the hub.")
    ],
) -> None:
    """Serve one model on this machine, without Kubernetes, over gRPC and OpenAI's HTTP API, until Ctrl-C.

    After the model, --http-port PORT moves the HTTP API from port 8000 (0 = any free one), --no-http leaves it out.
    A model of the hub is downloaded once into DORMOUSE_CACHE (default ~/.cache/dormouse); --revision chooses a branch,
    tag or commit, and HF_TOKEN and HF_ENDPOINT are used. ORG/NAME:Q4_K_M is one of a
    repository's GGUF files.

    Every flag of dormouse-worker may follow the model: --port, --host, --max-model-len, --dtype, --max-num-seqs,
    --gpu-memory-utilization, --kv-cache-memory, --swap-space, --served-model-name, …; `dormouse serve MODEL --help`
    describes them all.
    """
    from dormouse_api.outlets import fill_standard_descriptors
    from dormouse_cli.screen import Screen
    from dormouse_cli.serve import prepare

    fill_standard_descriptors()
    screen = Screen.standard()
    with said_errors(screen.error):
        command = prepare(model, context.args, os.environ, screen.remark)
        os.execv(command[0], command)  # noqa: S606  no shell is meant


@dataclass(frozen=True, slots=True)
class _Session:
    """What a command works with."""

    client: Client
    model: str
    output: Output


@contextmanager
def _session(context: typer.Context, way: Way, model: str, timeout_s: float = 30.0) -> Iterator[_Session]:
    """Find the model, connect, and say errors."""
    from rich.console import Console

    from dormouse_cli.output import Output
    from dormouse_cli.reach import reached

    output = Output(Console(), Console(stderr=True))
    with said_errors(output.error), reached(way, model, world_of(context), timeout_s=timeout_s) as (client, name):
        yield _Session(client, name, output)


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
