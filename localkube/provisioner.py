"""Make a folder and a PersistentVolume for each claim of our storage class, and remove both with the claim.

Level-triggered: watches only say that something changed; then claims and volumes are listed and the plan is made anew.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from localkube import spec
from localkube.errors import ApiError

CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
WATCH_S = 60
RETRY_S = 1.0
DUE = "volume.kubernetes.io/storage-provisioner"  # set by the controller once a volume is to be made
MADE_BY = "pv.kubernetes.io/provisioned-by"


@dataclass(frozen=True, slots=True)
class Plan:
    """The next actions."""

    create: tuple[dict[str, Any], ...] = ()  # volumes to make
    delete: tuple[str, ...] = ()  # names of volumes to remove


def volume_for(claim: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the volume for a claim; its name follows from the claim's uid, so a repeated try makes no second one."""
    metadata, wanted = claim["metadata"], claim["spec"]
    name = f"pvc-{metadata['uid']}"
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [spec.NODE_NAME, spec.SECOND_NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {MADE_BY: spec.PROVISIONER}},
        "spec": {
            "capacity": {"storage": wanted["resources"]["requests"]["storage"]},
            "accessModes": wanted["accessModes"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": wanted["storageClassName"],
            "hostPath": {"path": str(folder / name), "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        },
    }


def _is_due(claim: dict[str, Any]) -> bool:
    metadata = claim["metadata"]
    ours = metadata.get("annotations", {}).get(DUE) == spec.PROVISIONER
    is_bound = bool(claim["spec"].get("volumeName"))
    is_folder = claim["spec"].get("volumeMode", "Filesystem") == "Filesystem"
    return ours and is_folder and not is_bound and "deletionTimestamp" not in metadata


def _is_over(volume: dict[str, Any]) -> bool:
    metadata = volume["metadata"]
    ours = metadata.get("annotations", {}).get(MADE_BY) == spec.PROVISIONER
    is_released = volume.get("status", {}).get("phase") in {"Released", "Failed"}
    is_deleted = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    return ours and is_released and is_deleted and "deletionTimestamp" not in metadata


def plan(claims: Iterable[dict[str, Any]], volumes: Iterable[dict[str, Any]], folder: Path) -> Plan:
    """Decide what to make and what to remove."""
    known = {volume["metadata"]["name"]: volume for volume in volumes}
    wanted = (volume_for(claim, folder) for claim in claims if _is_due(claim))
    return Plan(
        create=tuple(volume for volume in wanted if volume["metadata"]["name"] not in known),
        delete=tuple(name for name, volume in known.items() if _is_over(volume)),
    )


class Api(Protocol):
    """What the provisioner needs of the API server; each call may raise ApiError."""

    def get(self, path: str) -> Any:
        """Return an object or a list."""

    def create(self, path: str, value: dict[str, Any]) -> None:
        """Create an object; ApiError with status 409 if it is there."""

    def delete(self, path: str) -> None:
        """Delete an object; ApiError with status 404 if it is gone."""

    def watch(self, path: str, *, timeout_s: int) -> Iterable[dict[str, Any]]:
        """Yield events for at most `timeout_s`."""


class Provisioner:
    """Carries out one plan after the other. Owns the folders under `folder`."""

    def __init__(self, api: Api, folder: Path, log: Callable[[str], None]) -> None:
        self._api = api
        self._folder = folder
        self._log = log

    def __repr__(self) -> str:
        return f"Provisioner({self._folder})"

    def reconcile(self) -> None:
        """Look once and act. One volume's failure leaves the others alone; it is tried again at the next look."""
        claims, volumes = (self._api.get(path)["items"] for path in (CLAIMS, VOLUMES))
        todo = plan(claims, volumes, self._folder)
        for volume in todo.create:
            self._guarded(partial(self._make, volume))
        for name in todo.delete:
            self._guarded(partial(self._remove, name))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ApiError as error:
            if error.status not in {404, 409}:
                self._log(f"will be tried again: {error}")

    def _make(self, volume: dict[str, Any]) -> None:
        folder = Path(volume["spec"]["hostPath"]["path"])
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # pods run as any user
        self._api.create(VOLUMES, volume)
        self._log(f"made {volume['metadata']['name']}")

    def _remove(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._api.delete(f"{VOLUMES}/{name}")
        self._log(f"removed {name}")


def run(api: Api, folder: Path, *, ready: Path, log: Callable[[str], None]) -> None:
    """Serve until the process ends; `ready` is made after the first look."""
    changed = threading.Event()
    for path in (CLAIMS, VOLUMES):
        threading.Thread(target=_report_changes, args=(api, path, changed), daemon=True).start()
    provisioner = Provisioner(api, folder, log)
    while True:
        try:
            changed.clear()
            provisioner.reconcile()
            ready.touch()
        except ApiError as error:
            log(f"will look again: {error}")
            changed.wait(RETRY_S)
            continue
        changed.wait(WATCH_S)


def _report_changes(api: Api, path: str, changed: threading.Event) -> None:
    pause = threading.Event()
    while True:
        try:
            for _ in api.watch(path, timeout_s=WATCH_S):
                changed.set()
        except ApiError:
            pause.wait(RETRY_S)
