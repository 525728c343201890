"""The conductor: `up`, `down` and `status` as literal lists of steps. Knows the order, and no details."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube import build, cgroups, config, host, lock, manifests, nft, node, pki, second, spec, teardown
from localkube.components import Programs, Wave, waves
from localkube.errors import ApiError, ComponentError
from localkube.kubeapi import KubeApi, object_path
from localkube.lock import Owner
from localkube.processes import boot_id
from localkube.progress import Progress
from localkube.spec import Paths
from localkube.start import State, observe, run_wave

CLONE = build.PACKAGE_DIR.parent
NEEDED_BYTES = 2 * 2**30  # for logs, etcd and the pods' own files; images are checked by who builds them
NODE_TIMEOUT_S = 60.0
POLL_S = 0.1
NODES = "/api/v1/nodes"
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster at one place. Owns nothing in memory: all state is in files and in the kernel."""

    paths: Paths
    progress: Progress = field(default_factory=Progress)

    def up(self, *, num_nodes: int = 1) -> None:
        """Bring the cluster up, or mend it; takes a moment if it is up. A second node stays until `down`.

        Raises LocalkubeError.
        """
        host.check_root()
        with lock.machine_lock("localkube up", self.progress.say):
            self._replace_other()
            if self.is_up(num_nodes):
                self.progress.say(f"already up and healthy; KUBECONFIG={self.paths.kubeconfig}")
                return
            host.ensure_packages(self.progress.say)
            binaries = build.build(self.paths, self.progress)
            build.check_free_space(self.paths.root, NEEDED_BYTES, what="the cluster")
            # The note of the owner is written before anything starts and does not survive a boot.
            is_fresh = lock.read_owner() is None or not (self.paths.var / "etcd").exists()
            # Containers hang on the bridge by their ends of a cable: without it they must be made anew.
            keeps_containers = not is_fresh and host.bridge_exists()
            self._prepare(is_fresh=is_fresh)
            if num_nodes == 2:
                second.want(self.paths)
            self._start(binaries, keeps_containers=keeps_containers)
            self.progress.say(f"up; KUBECONFIG={self.paths.kubeconfig}")

    def down(self, *, purge: bool = False) -> None:
        """End the cluster and remove its traces; with `purge` also images and binaries. Raises LocalkubeError."""
        host.check_root()
        with lock.machine_lock("localkube down", self.progress.say):
            owner = lock.read_owner()
            if owner is not None and owner.root != str(self.paths.root):
                self.progress.say(f"the running cluster belongs to {owner.root}: left alone")
                return
            teardown.down(self.paths, self.progress, purge=purge)
            lock.forget_owner()
            self.progress.say("down; nothing is left" if purge else "down; images and binaries are kept (--purge)")

    def _replace_other(self) -> None:
        """End a cluster of other sources, another folder or another boot; adopt one that is the same."""
        owner, wanted = lock.read_owner(), self._owner()
        if owner is None or owner == wanted:
            return
        if (owner.root, owner.digest, owner.boot_id) != (wanted.root, wanted.digest, wanted.boot_id):
            self.progress.say(f"replacing the cluster of {owner.clone} ({difference(owner, wanted)})")
            teardown.down(Paths(Path(owner.root)), self.progress)
            lock.forget_owner()
            return
        self.progress.say(f"adopting the cluster of {owner.clone}: its localkube is the same")

    def _owner(self) -> Owner:
        return Owner(str(self.paths.root), str(CLONE), build.source_digest(), boot_id())

    def _waves(self, binaries: Path) -> tuple[Wave, ...]:
        return waves(self.paths, Programs(binaries, host.program("containerd"), CLONE))

    def _prepare(self, *, is_fresh: bool) -> None:
        """Make everything that the components find when they start."""
        if is_fresh:  # a killed run, or a boot in between, may have left something
            teardown.down(self.paths, self.progress)
            host.remove_tree(self.paths.logs)
        lock.write_owner(self._owner())
        host.save_record(self.paths.host_record)
        host.ensure_forwarding(self.progress.say)
        host.ensure_bridge_filter(self.progress.say)
        undo = f"`python -m localkube down`, or nft delete table {nft.FAMILY} {nft.TABLE}"
        self.progress.say(f"enforcing NetworkPolicies by nft table {nft.FAMILY} {nft.TABLE} (undo: {undo})")
        host.ensure_bridge(self.progress.say)
        cgroups.ensure()
        for folder in (self.paths.run, self.paths.var, self.paths.volumes, self.paths.logs, self.paths.registry):
            folder.mkdir(parents=True, exist_ok=True)
        pki.ensure(self.paths)
        rendered = config.files(self.paths, runc=host.program("runc"), cni_bin=str(host.cni_folder()))
        for name, text in rendered.items():
            (self.paths.etc / name).parent.mkdir(parents=True, exist_ok=True)
            (self.paths.etc / name).write_text(text, "utf-8")

    def _start(self, binaries: Path, *, keeps_containers: bool) -> None:
        machinery, control_plane, rest = self._waves(binaries)
        run_wave(self.paths, machinery, self.progress)
        if not keeps_containers:  # containerd's store outlives the cluster: its containers must not
            node.remove_containers(self.paths)
        node.ensure_pause_image(self.paths, binaries)
        run_wave(self.paths, control_plane, self.progress)
        self._wait_for("the built-in roles", self._apply_bootstrap)
        run_wave(self.paths, rest, self.progress)
        if second.is_wanted(self.paths):
            self._start_second(binaries, keeps_containers=keeps_containers)
        self._wait_for("nodes Ready and the default service account", self.are_nodes_ready)
        saved = host.load_record(self.paths.host_record) or {}
        host.restore_sysctls(saved, host.KUBELET_SYSCTLS)

    def _start_second(self, binaries: Path, *, keeps_containers: bool) -> None:
        """Start the second node beside the first."""
        keeps_containers = keeps_containers and second.network_exists()
        second.prepare(self.paths, runc=host.program("runc"), cni_bin=str(host.cni_folder()))
        machinery, orders = second.waves(self.paths, binaries, host.program("containerd"))
        run_wave(self.paths, machinery, self.progress)
        if not keeps_containers:
            node.remove_containers(self.paths.second)
        node.ensure_pause_image(self.paths.second, binaries)
        run_wave(self.paths, orders, self.progress)

    def _api(self) -> KubeApi:
        return KubeApi(self.paths.pki, "admin")

    def _apply_bootstrap(self) -> bool:
        for value in manifests.bootstrap():
            self._api().apply(object_path(value), value)
        return True

    def are_nodes_ready(self) -> bool:
        """Ask the API server; raises ApiError."""
        names = [spec.NODE_NAME, *([spec.SECOND_NAME] if second.is_wanted(self.paths) else [])]
        statuses = [self._api().get(f"{NODES}/{name}")["status"] for name in names]
        self._api().get(DEFAULT_ACCOUNT)
        return all(_is_ready(status) for status in statuses)

    def _wait_for(self, what: str, check: Callable[[], bool]) -> None:
        """Repeat a check until it holds; a refusal by the API server counts as 'not yet'."""
        deadline_s, last = time.monotonic() + NODE_TIMEOUT_S, "it is not so"
        while time.monotonic() < deadline_s:
            try:
                if check():
                    self.progress.say(what)
                    return
            except ApiError as error:
                last = str(error)
            time.sleep(POLL_S)
        raise ComponentError(f"waited {NODE_TIMEOUT_S:.0f} s for {what}: {last}; logs: {self.paths.logs}")

    def states(self) -> list[State]:
        """Look at every component; changes nothing."""
        binaries = build.bin_dir(self.paths)
        waves = self._waves(binaries)
        if second.is_wanted(self.paths):
            waves += second.waves(self.paths, binaries, host.program("containerd"))
        return [observe(self.paths, component) for wave in waves for component in wave]

    def is_up(self, num_nodes: int) -> bool:
        """Return whether the cluster is as wanted; then bring back the image that a kubelet short of disk deletes.

        Without it no pod starts. Raises ComponentError.
        """
        has_second = second.is_wanted(self.paths)
        if num_nodes > 1 + has_second or not self.is_healthy():
            return False
        for paths in (self.paths, self.paths.second) if has_second else (self.paths,):
            node.ensure_pause_image(paths, build.bin_dir(self.paths))
        return True

    def is_healthy(self) -> bool:
        """Return whether all components of this localkube run and the node is Ready; never raises ApiError."""
        is_made = lock.read_owner() is not None and (self.paths.pki / pki.COMPLETE).exists()
        if not (is_made and host.bridge_exists()):
            return False
        try:
            return all(state.ready for state in self.states()) and self.are_nodes_ready()
        except ApiError:
            return False


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))


def difference(old: Owner, new: Owner) -> str:
    """Say why a running cluster cannot be adopted."""
    if old.boot_id != new.boot_id:
        return "the machine was restarted"
    if old.root != new.root:
        return f"it lives in {old.root}, this one in {new.root}"
    return f"its localkube is {old.digest}, this one {new.digest}"
