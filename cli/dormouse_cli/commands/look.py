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
    """Show deployments as a tree: replicas and ranks, state, blocks, memory, last wake, and what is missing."""

    async def work(session: Session) -> None:
        from dormouse_cli import show

        await show.status(session, name=name, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def pool(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Name of the GpuPool, shown whole; default is all, in short.")
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    output: Output = Form.TEXT,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show pools of GPUs; one as a tree: slots, who holds each, who is next, who sleeps there, and who waits."""

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
    """Show LoRA adapters: where each is, on how many replicas, its rank, size and digest, and why one is missing."""

    async def work(session: Session) -> None:
        from dormouse_cli import show

        await show.adapters(session, name=name, all_namespaces=all_namespaces, form=output)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def top(
    context: typer.Context,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="How many looks; default is until Ctrl-C.")] = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show what each worker does now: requests, KV cache, tokens a second. One look where nobody watches."""

    async def work(session: Session) -> None:
        from dormouse_cli import watching

        await watching.top(session, all_namespaces=all_namespaces, interval_s=interval, count=count)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def logs(
    context: typer.Context,
    name: Name,
    namespace: Namespace = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many last lines of each pod.")] = None,
    since: Annotated[int | None, typer.Option(min=1, help="Only lines of the last so many seconds.")] = None,
    previous: Annotated[bool, typer.Option(help="Of the containers before their last restart.")] = False,
    timestamps: Annotated[bool, typer.Option(help="Begin each line with the time when it was written.")] = False,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Show the logs of all ranks of a deployment, merged by time, each line with its pod in front."""

    async def work(session: Session) -> None:
        from dormouse_cli import logs as reading
        from dormouse_cli.cluster import LogQuery

        query = LogQuery("worker", tail_lines=tail, since_s=since, follow=follow, previous=previous)
        await reading.show(session, name, query, timestamps=timestamps)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)
