"""`keys`, `usage`, `cost`: API keys for the models of a namespace, what they used, and what that cost."""

from __future__ import annotations

from typing import Annotated

import typer

from dormouse_cli.options import AllNamespaces, Context, Kubeconfig, Namespace
from dormouse_cli.session import Session, run

keys = typer.Typer(help="Make API keys for the models of a namespace.", no_args_is_help=True)


@keys.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the InferenceKey.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that it may use; may be repeated. Default is all of the namespace."),
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(min=0.001, help="Days until it ends; default never.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests in any minute.")] = None,
    requests_per_day: Annotated[int | None, typer.Option(min=1, help="Requests on a day of UTC.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens in any minute.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="Tokens on a day of UTC.")] = None,
    weight: Annotated[int | None, typer.Option(min=1, max=100, help="Share beside other keys; default 1.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Requests at the same time.")] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Make an InferenceKey and print its key, once: only its digest is stored."""
    limits = {
        "requestsPerMinute": requests_per_minute,
        "requestsPerDay": requests_per_day,
        "tokensPerMinute": tokens_per_minute,
        "tokensPerDay": tokens_per_day,
        "weight": weight,
        "maxConcurrent": max_concurrent,
    }

    async def work(session: Session) -> None:
        from dormouse_cli import new_key

        await new_key.create(session, name, models=model, expires_in_days=expires_in_days, limits=limits)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


_Since = Annotated[str, typer.Option(help="How far back Prometheus is asked, as it writes times: 1h, 7d, 30d.")]


def usage(
    context: typer.Context,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    prometheus: Annotated[
        str | None, typer.Option(envvar="PROMETHEUS_URL", help="Address of a Prometheus; default: ask the gateways.")
    ] = None,
    since: _Since = "30d",
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Write, as CSV, what each API key used of each model of a namespace: requests and tokens."""

    async def work(session: Session) -> None:
        from dormouse_cli import usage as used

        where = None if all_namespaces else session.namespace
        await used.show(session, namespace=where, prometheus=prometheus, since=since)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def cost(
    context: typer.Context,
    prometheus: Annotated[
        str, typer.Option(envvar="PROMETHEUS_URL", help="Address of a Prometheus, http://HOST:PORT.")
    ],
    gpu_hour: Annotated[float, typer.Option(min=0, help="Price of an hour of one GPU.")],
    asleep_gpu_hour: Annotated[
        float | None,
        typer.Option(min=0, help="The same while its holder sleeps. Default: 0 for members of pools, else --gpu-hour."),
    ] = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    since: _Since = "30d",
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Write, as CSV, hours of GPUs awake, asleep and at zero by deployment, their cost, and what sleeping saved."""

    async def work(session: Session) -> None:
        from dormouse_cli import cost as costs

        where = None if all_namespaces else session.namespace
        prices = costs.Prices(gpu_hour, asleep_gpu_hour)
        await costs.show(session, prices, namespace=where, prometheus=prometheus, since=since)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)
