"""`top`: looks at every worker again and again. Redraws on a terminal; elsewhere it writes one look as lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rich.live import Live
from rich.table import Table
from rich.text import Text

from dormouse_api.names import METRICS_PORT
from dormouse_cli.errors import CommandFailed
from dormouse_cli.samples import COLUMNS, Load, Row, parse, rows
from dormouse_cli.session import Session
from dormouse_cli.show import look
from dormouse_cli.view import DeploymentView
from dormouse_kube.errors import Forbidden, KubeError


async def top(session: Session, *, all_namespaces: bool, interval_s: float, count: int | None) -> None:
    """Show `count` looks; None: until Ctrl-C on a terminal, else one (after a first one that speeds need)."""
    namespace = None if all_namespaces else session.namespace
    if session.screen.out.is_terminal:
        await _live(session, namespace, interval_s, count)
        return
    before: dict[str, Load] = {}
    for number in range(count or 1):
        if number:
            await asyncio.sleep(interval_s)
        shown, before = await once(session, namespace, before)
        for cells in (COLUMNS, *(row.cells for row in shown)):
            session.screen.say("\t".join(cells))


async def _live(session: Session, namespace: str | None, interval_s: float, count: int | None) -> None:
    before: dict[str, Load] = {}
    looks = 0
    with Live(console=session.screen.out, auto_refresh=False) as live:
        while True:
            shown, before = await once(session, namespace, before)
            live.update(table(shown), refresh=True)
            looks += 1
            if looks == count:
                return
            await asyncio.sleep(interval_s)


async def once(session: Session, namespace: str | None, before: dict[str, Load]) -> tuple[list[Row], dict[str, Load]]:
    """Look once; return the rows and what was heard, for the next look. Raises CommandFailed without any pod."""
    views = await look(session, name=None, namespace=namespace)
    places = {_label(view, pod.pod, namespace): (view.namespace, pod.pod) for view in views for pod in view.pods}
    if not places:
        raise CommandFailed("there is no worker pod; dormouse status shows what became of them")
    heard = await asyncio.gather(*(_ask(session, place) for place in places.values()))
    after = {label: load for label, load in zip(places, heard, strict=True) if load}
    states = {_label(view, pod.pod, namespace): pod.state for view in views for pod in view.pods}
    return rows(states, before, after), after


def _label(view: DeploymentView, pod: str, namespace: str | None) -> str:
    """Return what a pod is called: by its namespace too, where several are shown."""
    return pod if namespace else f"{view.namespace}/{pod}"


async def _ask(session: Session, place: tuple[str, str]) -> Load | None:
    """Return a worker's load, None if it does not answer now. A missing right is raised."""
    try:
        return parse(await session.cluster.metrics(*place, METRICS_PORT), time.monotonic())
    except Forbidden:
        raise
    except KubeError:
        return None


def table(shown: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    drawn = Table(box=None)
    for number, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="left" if number < 2 else "right")
    for row in shown:
        drawn.add_row(*(Text(cell) for cell in row.cells))
    return drawn
