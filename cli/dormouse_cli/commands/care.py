"""`doctor`, `report`, `migrate-storage`, `completion`: diagnosis, upkeep, help for the shell."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dormouse_cli.options import AllNamespaces, Context, Form, Kubeconfig, Namespace, Output
from dormouse_cli.session import Session, run


def doctor(
    context: typer.Context,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = Form.TEXT,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Check cluster, installation, rights and deployments, with a remedy for each finding. Changes nothing."""

    async def work(session: Session) -> None:
        from dormouse_cli import doctor as checking

        await checking.examine(session, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def report(
    context: typer.Context,
    file: Annotated[Path, typer.Option("--file", "-f", help="Where to write the .tar.gz.")] = Path(
        "dormouse-report.tar.gz"
    ),
    tail: Annotated[int, typer.Option(min=0, help="Number of last lines of each log.")] = 2000,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Pack resources, events and logs of a namespace and of the installation into one file, without secrets.

    Secrets are never read. Values of environment variables, tokens and keys are replaced; look at the file before you
    send it.
    """

    async def work(session: Session) -> None:
        from dormouse_cli import report as gathering

        await gathering.write(session, file, tail_lines=tail)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def migrate_storage(
    context: typer.Context,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Have the API server store all objects of Dormouse's kinds in the version that the definitions name.

    Needed before a release whose definitions no longer have the version in which objects were stored. It writes each
    object as it is, in all namespaces, so that nothing happens to models; it may be interrupted and run again.
    """

    async def work(session: Session) -> None:
        from dormouse_cli import storage

        await storage.migrate(session)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=None)


class Shell(StrEnum):
    """The shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Which shell's script: bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell, for example: source <(dormouse completion bash)."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # imported there, not exported

    program, variable = "dormouse", "_DORMOUSE_COMPLETE"
    script = get_completion_script(prog_name=program, complete_var=variable, shell=shell.value)  # nosec B604  # its name
    sys.stdout.write(script + "\n")
