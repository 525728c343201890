"""`status`, `pool`, `adapters`, `top`, `logs`: what there is, what it does, what it says."""

from __future__ import annotations

from typing import Annotated

import typer

from dormouse_cli.options import AllNamespaces, Context, Form, Kubeconfig, Name, Namespace, Output
from dormouse_cli.session import Session, run


def status(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of the InferenceDeployment; default is all.")] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = Form.TEXT,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show deployments as a tree: replicas, ranks, state, blocks, memory, last wake, and what is missing."""

    async def work(session: Session) -> None:
        from dormouse_cli import show

        await show.status(session, name=name, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def pool(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of the GpuPool; default is all, one line each.")] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = Form.TEXT,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show GPU pools; with NAME as a tree: slots, holders, sleepers, and which members wait."""

    async def work(session: Session) -> None:
        from dormouse_cli import show

        await show.pools(session, name=name, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def adapters(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Name of the InferenceDeployment; default is all that have adapters.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = Form.TEXT,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show LoRA adapters: state, replicas, rank, size, digest, and why one is missing."""

    async def work(session: Session) -> None:
        from dormouse_cli import show

        await show.adapters(session, name=name, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def top(
    context: typer.Context,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Number of updates; default is until Ctrl-C.")] = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show the load of each worker: requests, KV cache, tokens per second. Prints once if not on a terminal."""

    async def work(session: Session) -> None:
        from dormouse_cli import watching

        await watching.top(session, all_namespaces=all_namespaces, interval_s=interval, count=count)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def logs(
    context: typer.Context,
    name: Name,
    namespace: Namespace = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines of each pod.")] = None,
    since: Annotated[int | None, typer.Option(min=1, help="Only lines of the last N seconds.")] = None,
    previous: Annotated[bool, typer.Option(help="Logs of the containers before their last restart.")] = False,
    timestamps: Annotated[bool, typer.Option(help="Start each line with its time.")] = False,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show the logs of all pods of a deployment, merged by time, each line prefixed with its pod."""

    async def work(session: Session) -> None:
        from dormouse_cli import logs as reading
        from dormouse_cli.cluster import LogQuery

        query = LogQuery("worker", tail_lines=tail, since_s=since, follow=follow, previous=previous)
        await reading.show(session, name, query, timestamps=timestamps)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)
