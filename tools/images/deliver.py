"""Hand the built images to the cluster that demo and tests use."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable

from tools.images import content
from tools.images.build import Names
from tools.images.settings import Settings
from tools.images.store import Store, run_program


def deliver(settings: Settings, store: Store, names: Names, say: Callable[[str], None]) -> None:
    """Bring every image, under its content tag, to where the cluster's nodes find it."""
    for part in content.PARTS:
        started = time.monotonic()
        deliver_one(settings, store, names.image(part))
        say(f"{part}: {names.image(part)} is in the cluster's reach after {time.monotonic() - started:.1f} s")


def deliver_one(settings: Settings, store: Store, image: str) -> None:
    """Choose the way: localkube, a registry of the user's, or a command of the user's."""
    if not settings.context:
        load_into_localkube(settings, image)
    elif settings.registry:
        store.push(image, f"docker://{image}", *loopback_options(settings.registry))
    else:
        load_with_command(settings, store, image)


def load_into_localkube(settings: Settings, image: str) -> None:
    """Let localkube copy the layers that its registry does not have yet."""
    command = [sys.executable, "-m", "localkube", "load", image, "--storage-root", str(settings.storage)]
    run_program(command, extra={"PYTHONPATH": str(settings.source), "TMPDIR": str(settings.scratch)})


def loopback_options(registry: str) -> list[str]:
    """Return how to speak to a registry: without TLS on this machine only."""
    host = registry.partition("/")[0].partition(":")[0]
    return ["--tls-verify=false"] if host in {"localhost", "127.0.0.1"} else []


def load_with_command(settings: Settings, store: Store, image: str) -> None:
    """Write an archive, run the user's command on it, and leave no archive behind."""
    archive = settings.scratch / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
    try:
        store.push(image, f"docker-archive:{archive}:{image}")
        run_program(
            [word.replace("{}", str(archive)) for word in shlex.split(settings.load_command)], extra=dict(os.environ)
        )
    finally:
        archive.unlink(missing_ok=True)
