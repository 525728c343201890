"""What a cluster leaves in the kernel and outside its folder: find it, remove it. Safe when there is nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localkube import cgroups, host, nft, second
from localkube.processes import Identity, identify, stop
from localkube.spec import Paths

NFT_TABLES = ("kube-proxy", nft.TABLE)
CNI_CACHE = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")  # the kubelet keeps links here, wherever the logs are
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
STRAYS = {
    b"containerd-shim-runc-v2",
    b"containerd",
    b"coredns",
    b"etcd",
    b"kube-apiserver",
    b"kube-controller-manager",
    b"kube-proxy",
    b"kube-scheduler",
    b"kubelet",
    b"registry",
}
SHIM_SOCKETS = Path("/run/containerd/s")  # the same for every containerd, under hashed names
SOCKETS = (SHIM_SOCKETS, DEVICE_PLUGINS)
EMPTIED = (
    CNI_CACHE,
    CNI_CACHE.parent,
    CONTAINER_LOGS,
    DEVICE_PLUGINS,
    DEVICE_PLUGINS.parent,
    SHIM_SOCKETS,
    SHIM_SOCKETS.parent / "fifo",
    SHIM_SOCKETS.parent / "runc" / "k8s.io",
    SHIM_SOCKETS.parent / "runc",
    SHIM_SOCKETS.parent,
)


def unescape_mount(text: str) -> str:
    """Return a path of /proc/self/mountinfo, where blanks and the like stand as octal escapes."""
    for escape, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(escape, char)
    return text


def mounts_under(folder: Path, mountinfo: str) -> list[str]:
    """Return the mount points at or below a folder, the ones mounted last first (a place may occur twice)."""
    points = [unescape_mount(line.split()[4]) for line in mountinfo.splitlines() if line]
    ours = [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]
    return ours[::-1]


def find_mounts(paths: Paths) -> list[str]:
    """Return our mounts, in the order to unmount them."""
    return mounts_under(paths.root, Path("/proc/self/mountinfo").read_text("utf-8"))


def unmount_all(paths: Paths) -> None:
    """Unmount everything of ours; what is busy is detached."""
    for point in find_mounts(paths):
        for flags in ([], ["-l"]):
            done = subprocess.run(["umount", *flags, point], capture_output=True, check=False)
            if done.returncode == 0:
                break


def find_nft_tables() -> list[tuple[str, str]]:
    """Return (family, name) of our tables."""
    done = subprocess.run([host.program("nft"), "list", "tables"], capture_output=True, text=True, check=False)
    return parse_nft_tables(done.stdout)


def parse_nft_tables(listing: str) -> list[tuple[str, str]]:
    """Return (family, name) of our tables in `nft list tables` (lines such as `table ip kube-proxy`)."""
    words = [line.split() for line in listing.splitlines()]
    return [(line[1], line[2]) for line in words if len(line) == 3 and line[0] == "table" and line[2] in NFT_TABLES]


def remove_nft_tables() -> None:
    """Remove kube-proxy's tables and that of the policies."""
    for family, name in find_nft_tables():
        subprocess.run([host.program("nft"), "delete", "table", family, name], capture_output=True, check=False)


def is_stray(words: list[bytes], paths: Paths) -> bool:
    """Return whether a command line is a daemon's of ours: one of its programs, with a place of ours as argument."""
    places = [f"{place.state}/".encode() for place in (paths, paths.second)]
    return words[0].rpartition(b"/")[2] in STRAYS and any(place in word for word in words[1:] for place in places)


def find_strays(paths: Paths, proc: Path = Path("/proc")) -> list[Identity]:
    """Return containerd's shims, which have no pid files, and components whose pid files were lost."""
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_stray(words, paths):
            found.append(identify(int(folder.name)))
    return [identity for identity in found if identity is not None]


def end_strays(paths: Paths) -> None:
    """End them by force: their containers are dead already."""
    strays = find_strays(paths)
    for stray in strays:
        try:
            os.kill(stray.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    stop(strays, grace_s=5.0)


def is_dead_socket(path: Path) -> bool:
    """Return whether a Unix socket has no listener any more; such a file is of use to nobody."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def mentions(path: Path, folder: Path) -> bool:
    """Return whether a text file speaks of something in a folder; False if it cannot be read."""
    try:
        return f"{folder}/" in path.read_text("utf-8", "replace")
    except OSError:
        return False


def find_files(paths: Paths) -> list[Path]:
    """Return what kubelet, CNI and shims put outside our folder and left there."""
    links = [link for link in CONTAINER_LOGS.glob("*") if link.is_symlink()]
    return [
        *(result for result in CNI_CACHE.glob("*") if mentions(result, paths.root)),
        *(link for link in links if str(link.readlink()).startswith(f"{paths.root}/")),
        *(path for folder in SOCKETS for path in folder.glob("*") if is_dead_socket(path)),
    ]


def remove_files(paths: Paths) -> None:
    """Remove those files, and the folders made for them if they are empty now."""
    for path in find_files(paths):
        path.unlink(missing_ok=True)
    for folder in EMPTIED:
        try:
            folder.rmdir()
        except OSError:
            continue


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is still there of a cluster; false when nothing is."""

    mounts: tuple[str, ...]
    nft_tables: tuple[str, ...]
    cgroups: tuple[str, ...]
    processes: tuple[int, ...]
    bridge: bool
    sysctls: tuple[str, ...]
    files: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.mounts, self.nft_tables, self.cgroups, self.processes, self.bridge, self.sysctls, self.files))


def find(paths: Paths, sysctls_before: dict[str, str] | None) -> Leftovers:
    """Look everywhere; changes nothing."""
    before = sysctls_before or {}
    now = host.read_sysctls()
    return Leftovers(
        mounts=tuple(find_mounts(paths)),
        nft_tables=tuple(" ".join(table) for table in find_nft_tables()),
        cgroups=tuple(map(str, cgroups.groups())),
        processes=tuple(stray.pid for stray in find_strays(paths)),
        bridge=host.bridge_exists() or second.network_exists(),
        sysctls=tuple(name for name, value in before.items() if now.get(name, value) != value),
        files=tuple(map(str, find_files(paths))),
    )
