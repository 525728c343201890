"""`batch`: a file of requests to a gateway, in OpenAI's batch format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dormouse_cli.options import ApiKey, Context, Kubeconfig, Namespace, Tls, TlsCa
from dormouse_cli.session import said_errors, way_of, world_of

File = Annotated[
    Path, typer.Argument(help="JSON lines: custom_id, method (POST), url (such as /v1/chat/completions), body.")
]
Answers = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File of the answers; an existing one is continued. Default: FILE's name with .answers.jsonl.",
    ),
]
AskedModel = Annotated[
    str | None,
    typer.Option("--model", help="Use this model, or namespace/name, instead of those in the requests."),
]
HttpAddress = Annotated[
    str | None,
    typer.Option(
        envvar="DORMOUSE_HTTP_ADDRESS",
        help="Gateway's HTTP port as host:port. Default: what listens on 127.0.0.1:8000, else the cluster's gateway,"
        " found and forwarded by itself.",
    ),
]
MaxConcurrency = Annotated[int, typer.Option(min=1, max=1000, help="Maximum requests in flight.")]
Priority = Annotated[int, typer.Option(min=-100, max=100, help="Priority of requests that have none; 100 goes last.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds for one request, retries included.")]


def batch(
    context: typer.Context,
    file: File,
    output: Answers = None,
    model: AskedModel = None,
    address: HttpAddress = None,
    max_concurrency: MaxConcurrency = 16,
    priority: Priority = 100,
    timeout: Timeout = 3600.0,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Send a file of requests in OpenAI's batch format and write the answers. Run it again to continue.

    Exit code 1: a request failed; 130: Ctrl-C. Answers that were written stay.
    """
    from dormouse_api.names import HTTP_PORT
    from dormouse_cli.batch.order import Batch, perform, prepare
    from dormouse_cli.reach import door
    from dormouse_cli.screen import Screen

    way = way_of(address, api_key=api_key, tls=tls, tls_ca=tls_ca, kube=(kubeconfig, kube_context, namespace))
    screen = Screen.standard()
    with said_errors(screen.error):
        checked, answers = prepare(file, output)
        with door(way, model or checked.first_model, world_of(context), HTTP_PORT) as there:
            ordered = Batch(
                source=file,
                output=answers,
                model=there.model if model else None,
                priority=priority,
                max_concurrency=max_concurrency,
                timeout_s=timeout,
            )
            perform(ordered, checked, way, there, screen)
