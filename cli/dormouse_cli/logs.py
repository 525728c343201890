"""`logs`: the lines of all worker pods of a deployment as one stream. Each line begins with its pod."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from dormouse_cli import find
from dormouse_cli.cluster import Cluster, LogQuery
from dormouse_cli.errors import CommandFailed
from dormouse_cli.session import Session
from dormouse_cli.view import is_pod_of
from dormouse_kube.api import PODS, Resource
from dormouse_kube.errors import Gone, Invalid, KubeError, NotFound, Unavailable

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


async def show(session: Session, name: str, query: LogQuery, *, timestamps: bool) -> None:
    """Write the lines: merged by time, or, if followed, as they come."""
    await find.deployment(session.cluster, session.namespace, name)
    pods = find.names_of(await find.worker_pods(session.cluster, session.namespace, name))
    if not pods and not query.follow:
        raise CommandFailed(f"{name} has no pod; what became of it tells dormouse status {name}")
    printer = _Printer(session, pods, timestamps=timestamps)
    if query.follow:
        async for pod, line in followed(session.cluster, session.namespace, name, query):
            printer.line(pod, line)
        return
    kept = {pod: await _kept(session, pod, query) for pod in pods}
    for pod, line in merged(kept.items()):
        printer.line(pod, line)


def merged(kept: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """Yield pod and line in the order of the times in front of the lines; each pod's own order stays."""
    streams = [[(line.partition(" ")[0], pod, line) for line in lines] for pod, lines in kept]
    for _, pod, line in heapq.merge(*streams, key=lambda entry: entry[0]):
        yield pod, line


async def _kept(session: Session, pod: str, query: LogQuery) -> list[str]:
    """Return what a pod's log holds; a container that did not start yet has none, which is said."""
    try:
        return [line async for line in session.cluster.logs(session.namespace, pod, query)]
    except (Invalid, NotFound) as error:
        session.screen.remark(f"{pod}: {error}")
        return []


async def followed(
    cluster: Cluster, namespace: str, name: str, query: LogQuery, *, pause_s: float = 1.0
) -> AsyncIterator[tuple[str, str]]:
    """Yield pod and line as they are written, those of pods that come later too. Does not end by itself.

    A log or a watch that ended is asked for again after `pause_s`.
    """
    lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue(maxsize=1000)
    tasks: dict[str, asyncio.Task[None]] = {}

    async def find_pods() -> None:
        async for pod in appearing(cluster, namespace, name, pause_s=pause_s):
            if pod not in tasks:
                tasks[pod] = asyncio.ensure_future(_read(cluster, namespace, pod, query, lines, pause_s))

    finder = asyncio.ensure_future(find_pods())
    try:
        while True:
            getter = asyncio.ensure_future(lines.get())
            await asyncio.wait({getter, finder}, return_when=asyncio.FIRST_COMPLETED)
            if finder.done():
                getter.cancel()
                await finder
                return
            yield getter.result()
    finally:
        for task in (finder, *tasks.values()):
            task.cancel()
        await asyncio.gather(finder, *tasks.values(), return_exceptions=True)


async def appearing(cluster: Cluster, namespace: str, name: str, *, pause_s: float) -> AsyncIterator[str]:
    """Yield the names of the deployment's pods, at once and as they appear; a name may come again."""
    while True:
        try:
            listed = await cluster.list(PODS, namespace)
            for pod in (one for one in listed.items if _is_own(one, namespace, name)):
                yield pod["metadata"]["name"]
            async for event in cluster.watch(PODS, namespace, resource_version=listed.resource_version):
                if event.type in {"ADDED", "MODIFIED"} and _is_own(event.object, namespace, name):
                    yield event.object["metadata"]["name"]
        except (Gone, Unavailable):
            await asyncio.sleep(pause_s)


def _is_own(pod: Resource, namespace: str, name: str) -> bool:
    return is_pod_of(pod, namespace, name)


async def _read(
    cluster: Cluster,
    namespace: str,
    pod: str,
    query: LogQuery,
    lines: asyncio.Queue[tuple[str, str]],
    pause_s: float,
) -> None:
    """Put a pod's lines into the queue until the pod is gone; a container that starts later is waited for."""
    wanted, newest, told = query, "", ""
    while True:
        try:
            async for line in cluster.logs(namespace, pod, wanted):
                stamp = line.partition(" ")[0]
                if stamp > told:  # else it was read before the log was opened again
                    newest = stamp
                    await lines.put((pod, line))
            wanted, told = LogQuery(query.container, follow=True), newest
        except NotFound:
            return
        except KubeError:
            pass  # it does not run yet, or the kubelet is away
        await asyncio.sleep(pause_s)


class _Printer:
    """Writes lines with their pod in front, as wide as the longest name, each pod in a colour of its own."""

    def __init__(self, session: Session, pods: Sequence[str], *, timestamps: bool) -> None:
        self._screen = session.screen
        self._timestamps = timestamps
        self._seen = list(pods)

    def line(self, pod: str, text: str) -> None:
        """Write one line."""
        if pod not in self._seen:
            self._seen.append(pod)
        stamp, _, rest = text.partition(" ")
        shown = f"{stamp} {rest}" if self._timestamps else rest
        width = max(len(name) for name in self._seen)
        colour = _COLOURS[self._seen.index(pod) % len(_COLOURS)]
        self._screen.say(f"{pod:{width}} | {shown}", word=pod, colour=colour)
