"""Hand the built images to the cluster that demo and tests use."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tools.images import content
from tools.images.build import Names
from tools.images.settings import Settings
from tools.images.store import Store, run_program

LOCAL_REGISTRY = ("127.0.0.1", 5000)
STORAGE_CONF = '[storage]\ndriver = "overlay"\ngraphroot = "{storage}"\nrunroot = "{state}"\n'


def deliver(settings: Settings, store: Store, names: Names, say: Callable[[str], None]) -> None:
    """Bring every image to where the cluster's nodes find it, under its content tag and as the chart's default.

    Without a local cluster it only says so.
    """
    if not settings.context and not is_localkube_up():
        say("the local cluster is not up, so nothing was handed over; `make cluster images` does both")
        return
    ids = store.ids()
    for image in (name(part) for name in (names.image, names.release) for part in content.PARTS):
        if not settings.context and registry_holds(image, ids[image]):
            continue
        started = time.monotonic()
        deliver_one(settings, store, image)
        say(f"{image} handed to the cluster in {time.monotonic() - started:.1f} s")


def deliver_one(settings: Settings, store: Store, image: str) -> None:
    """Choose the way: localkube, a registry of the user's, or a command of the user's."""
    if not settings.context:
        load_into_localkube(settings, image)
    elif settings.registry:
        store.push(image, f"docker://{image}", *loopback_options(settings.registry))
    else:
        load_with_command(settings, store, image)


def registry_holds(image: str, image_id: str) -> bool:
    """Return whether localkube's registry has exactly this image under its name."""
    manifest = registry_manifest(image)
    return manifest is not None and str(manifest["config"]["digest"]).startswith(f"sha256:{image_id}")


def registry_manifest(image: str) -> dict[str, Any] | None:
    """Return what localkube's registry has under an image's name, whose host it drops; None where that is nothing."""
    repository, _, tag = image.partition("/")[2].partition(":")
    address = f"http://{LOCAL_REGISTRY[0]}:{LOCAL_REGISTRY[1]}/v2/{repository}/manifests/{tag}"
    request = urllib.request.Request(address, headers={"Accept": "application/vnd.oci.image.manifest.v1+json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            manifest: dict[str, Any] = json.load(answer)
    except OSError:
        return None
    return manifest


def load_into_localkube(settings: Settings, image: str) -> None:
    """Let localkube copy the layers that its registry does not have yet."""
    settings.storage_conf.write_text(STORAGE_CONF.format(storage=settings.storage, state=settings.runtime_state))
    extra = {"CONTAINERS_STORAGE_CONF": str(settings.storage_conf), "TMPDIR": str(settings.scratch)}
    command = [sys.executable, "-m", "localkube", "load", image]
    run_program(command, extra={**extra, "PYTHONPATH": str(settings.source)})


def is_localkube_up() -> bool:
    """Return whether localkube's registry answers."""
    with socket.socket() as connection:
        connection.settimeout(2)
        return connection.connect_ex(LOCAL_REGISTRY) == 0


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
