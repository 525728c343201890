"""The options that several commands share, each with its help. Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Form(StrEnum):
    """How an answer is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


Name = Annotated[str, typer.Argument(help="Name of the InferenceDeployment.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; default is that of the kubeconfig's context.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Use every namespace.")]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default is the current one.")
]
Kubeconfig = Annotated[
    str | None, typer.Option(envvar="KUBECONFIG", help="Path of the kubeconfig; default is ~/.kube/config.")
]
Output = Annotated[Form, typer.Option("--output", "-o", help="text for people, json or yaml for programs.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done and print progress.")]
WaitTimeout = Annotated[float, typer.Option(min=0.001, help="Seconds to wait; the change itself stays.")]
Address = Annotated[
    str | None,
    typer.Option(
        envvar="DORMOUSE_ADDRESS",
        help="Gateway or worker as host:port. Default: what listens on 127.0.0.1:50051, else the cluster's gateway,"
        " found and forwarded by itself.",
    ),
]
Model = Annotated[
    str, typer.Option(envvar="DORMOUSE_MODEL", help="Name of the model, or namespace/name, :adapter behind it.")
]
ApiKey = Annotated[str | None, typer.Option(envvar="DORMOUSE_API_KEY", help="API key, if the gateway requires one.")]
TlsCa = Annotated[str | None, typer.Option(help="File with the CA of the gateway's certificate (PEM); turns TLS on.")]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS with gRPC's default CAs.")]
