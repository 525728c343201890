"""How a command meets the cluster: opens it, runs the command's coroutine, says errors, ends with the exit code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.world import World

if TYPE_CHECKING:  # kubernetes and rich cost half a second: only commands that need them import them
    from dormouse_cli.cluster import Cluster, Open, Target
    from dormouse_cli.reach import Way
    from dormouse_cli.screen import Screen


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    cluster: Cluster
    namespace: str
    screen: Screen


def run(
    context: typer.Context,
    work: Callable[[Session], Awaitable[None]],
    *,
    kubeconfig: str | None,
    kube_context: str | None,
    namespace: str | None,
) -> None:
    """Run the command's work against the cluster that the options mean."""
    import asyncio

    from dormouse_cli.cluster import Target
    from dormouse_cli.screen import Screen

    screen = Screen.standard()
    target = Target(kubeconfig, kube_context, namespace)
    with said_errors(screen.error):
        asyncio.run(_meet(world_of(context).open, target, work, screen))


async def _meet(open_: Open, target: Target, work: Callable[[Session], Awaitable[None]], screen: Screen) -> None:
    from dormouse_cli.cluster import kube_errors

    async with open_(target) as opened:
        with kube_errors(opened.cluster.address):
            await work(Session(opened.cluster, opened.namespace, screen))


def world_of(context: typer.Context) -> World:
    """Return what is around the command: a test's, or the real one."""
    given: World | None = context.find_root().obj
    if given is not None:
        return given
    from dormouse_cli.cluster_client import open_cluster

    return World(open_cluster)


def way_of(
    address: str | None,
    *,
    api_key: str | None,
    tls: bool,
    tls_ca: str | None,
    kube: tuple[str | None, str | None, str | None],
) -> Way:
    """Return how the options say to reach a model; `kube` is kubeconfig, context and namespace."""
    from dormouse_cli.cluster import Target
    from dormouse_cli.reach import Way

    return Way(address=address, api_key=api_key, tls=tls, tls_ca=tls_ca, target=Target(*kube))


@contextmanager
def said_errors(say: Callable[[str], None]) -> Iterator[None]:
    """Say errors in one line and end with their code."""
    try:
        yield
    except CommandFailed as error:
        say(str(error))
        raise typer.Exit(error.code) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except BrokenPipeError as error:  # | head
        raise typer.Exit(ExitCode.DONE) from error
