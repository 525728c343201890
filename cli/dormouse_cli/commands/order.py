"""`sleep`, `wake`, `restart`, `rollback`, `canary`, `apply`: orders to a deployment, and how they go."""

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
    zero: Annotated[bool, typer.Option("--zero", help="Keep no pods at all.")] = False,
    wait: Wait = True,
    timeout: WaitTimeout = 300.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Put a deployment to sleep: running requests end, device memory is released.

    Requests are refused until `dormouse wake`. (Without this order an idle deployment sleeps by itself, and the next
    request wakes it.)
    """

    async def work(session: Session) -> None:
        from dormouse_cli import giving

        await giving.sleep(session, name, level=level, to_zero=zero, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def wake(
    context: typer.Context,
    name: Name,
    stay: Annotated[bool, typer.Option("--stay", help="Never sleep from now on (desiredState Active).")] = False,
    wait: Wait = True,
    timeout: WaitTimeout = 600.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Wake a deployment, whether it sleeps by itself or by order, and print conditions as they change."""

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
    """Replace all pods with new ones of the same spec, as spec.rollout says."""

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
    """Restore the spec from before the last `dormouse apply` or rollback; a second rollback undoes the first."""

    async def work(session: Session) -> None:
        from dormouse_cli import applying

        await applying.rollback(session, name, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def canary(
    context: typer.Context,
    name: Name,
    weight: Annotated[
        int | None, typer.Option(min=0, max=100, help="Percent of the other deployment's requests.")
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Give it all of them: weight 100.")] = False,
    abort: Annotated[bool, typer.Option("--abort", "--pause", help="Give it none, until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Give it its share again.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Change how many requests a canary takes; without an option, say where it stands.

    A change is another try, also after gateways have aborted the canary by themselves.
    """
    if (abort and (resume or promote)) or (promote and weight is not None):
        raise typer.BadParameter("give one of --weight and --promote, and not --abort with --resume or --promote")

    async def work(session: Session) -> None:
        from dormouse_cli import giving

        paused = True if abort else False if resume or promote else None
        await giving.canary(session, name, weight=100 if promote else weight, paused=paused)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)


def apply(
    context: typer.Context,
    filename: Annotated[
        str, typer.Option("--filename", "-f", help="YAML or JSON with InferenceDeployments; - is standard input.")
    ],
    wait: Wait = False,
    timeout: WaitTimeout = 1800.0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
) -> None:
    """Apply InferenceDeployments (server-side) and keep each former spec for `rollback`."""

    async def work(session: Session) -> None:
        from dormouse_cli import applying

        manifests = applying.parse(applying.read(filename), namespace=session.namespace)
        await applying.apply(session, manifests, timeout_s=timeout if wait else None)

    run(context, work, kubeconfig=kubeconfig, kube_context=kube_context, namespace=namespace)
