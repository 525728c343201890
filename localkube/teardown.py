"""End a cluster and remove every trace of it from the machine. Every step is safe when there is nothing to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from localkube import cgroups, host, leftovers, node, processes, second
from localkube.components import STOP_ORDER
from localkube.errors import ComponentError
from localkube.progress import Progress
from localkube.spec import Paths
from localkube.start import pid_file

GRACE_S = 10.0
LAST = STOP_ORDER[-1]


def stop_groups(names: Iterable[str]) -> list[list[str]]:
    """Return the components that have pid files in the order to end them; unknown ones (of another version) first."""
    present = set(names)
    known = {name for group in STOP_ORDER for name in group}
    groups = [sorted(present - known), *([name for name in group if name in present] for group in STOP_ORDER)]
    return [group for group in groups if group]


def _stop_group(paths: Paths, names: Iterable[str]) -> None:
    files = [pid_file(paths, name) for name in names]
    found = [identity for file in files if (identity := processes.read_pid_file(file)) is not None]
    processes.stop(found, grace_s=GRACE_S)
    for file in files:
        file.unlink(missing_ok=True)


def _remove_containers(paths: Paths, progress: Progress) -> None:
    for name, place in (("containerd", paths), ("containerd-2", paths.second)):
        if not processes.is_alive(processes.read_pid_file(pid_file(paths, name))):
            continue
        try:
            if count := node.remove_containers(place):
                progress.say(f"removed {count} containers")
        except ComponentError as error:
            progress.say(f"{error}; their processes are ended through their cgroups")


def down(paths: Paths, progress: Progress, *, purge: bool = False) -> None:
    """End the cluster under `paths`; with `purge`, remove images and binaries too.

    Raises:
        ComponentError: something is left that could not be removed; the text names it.
    """
    present = [file.stem for file in paths.pids.glob("*.json")] if paths.pids.is_dir() else []
    for group in stop_groups(present):
        if group[0] in LAST:
            _remove_containers(paths, progress)
        _stop_group(paths, group)
    clean(paths)
    saved = host.load_record(paths.host_record)
    if saved is not None and (changed := host.restore_sysctls(saved, saved)):
        progress.say(f"put back sysctls {', '.join(changed)}")
    if left := leftovers.find(paths, saved):
        raise ComponentError(f"the teardown left something behind: {left}")
    paths.host_record.unlink(missing_ok=True)
    for folder in _folders(paths, purge=purge):
        host.remove_tree(folder)
    paths.kubeconfig.unlink(missing_ok=True)


def _folders(paths: Paths, *, purge: bool) -> list[Path]:
    return [paths.root] if purge else [paths.state, paths.second.state]


def clean(paths: Paths) -> None:
    """Remove what lives in the kernel and outside our folder, once no component runs."""
    cgroups.kill_members()
    leftovers.end_strays(paths)
    leftovers.unmount_all(paths)
    leftovers.remove_nft_tables()
    second.remove_network()
    host.remove_bridge()
    cgroups.remove()
    leftovers.remove_files(paths)
