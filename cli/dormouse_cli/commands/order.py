"""`sleep`, `wake`, `restart`, `rollback`, `apply`: orders to a deployment, and how they go."""

from __future__ import annotations

from typing import Annotated

import typer

from dormouse_cli.options import Context, Kubeconfig, Name, Namespace, Wait, WaitTimeout
from dormouse_cli.session import Session, run


def sleep(
    context: typer.Context,
    name: Name,
    level: Annotated[
        int | None,
        typer.Option(min=1, max=3, help="1 keeps the weights in host memory, 2 drops them, 3 ends the engine."),
    ] = None,
    zero: Annotated[bool, typer.Option("--zero", help="Keep no pod at all.")] = False,
    wait: Wait = True,
    timeout: WaitTimeout = 300.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Order a deployment to sleep: running requests end, the device's memory is given back.

    Requests are refused until `dormouse wake`. (Without an order a deployment sleeps by itself when nobody calls, and
    the first request wakes it.)
    """

    async def work(session: Session) -> None:
        from dormouse_cli import giving

        await giving.sleep(session, name, level=level, to_zero=zero, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def wake(
    context: typer.Context,
    name: Name,
    stay: Annotated[bool, typer.Option("--stay", help="Serve from now on, also when nobody calls (Active).")] = False,
    wait: Wait = True,
    timeout: WaitTimeout = 600.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Wake a deployment, whether it sleeps by itself or by order, and tell condition by condition how far it is."""

    async def work(session: Session) -> None:
        from dormouse_cli import giving

        await giving.wake(session, name, keep_awake=stay, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def restart(
    context: typer.Context,
    name: Name,
    wait: Wait = True,
    timeout: WaitTimeout = 1800.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Replace all pods by new ones of the same spec, rolled out as spec.rollout says."""

    async def work(session: Session) -> None:
        from dormouse_cli import giving

        await giving.restart(session, name, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def rollback(
    context: typer.Context,
    name: Name,
    wait: Wait = True,
    timeout: WaitTimeout = 1800.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Return to the spec that was before the last `dormouse apply` or rollback; a second rollback undoes the first."""

    async def work(session: Session) -> None:
        from dormouse_cli import applying

        await applying.rollback(session, name, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def apply(
    context: typer.Context,
    filename: Annotated[
        str, typer.Option("--filename", "-f", help="YAML or JSON with InferenceDeployments; - is the standard input.")
    ],
    wait: Wait = False,
    timeout: WaitTimeout = 1800.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Apply InferenceDeployments (server-side), keep each former spec for `rollback`, and tell how they come up."""

    async def work(session: Session) -> None:
        from dormouse_cli import applying

        manifests = applying.parse(applying.read(filename), namespace=session.namespace)
        await applying.apply(session, manifests, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)
