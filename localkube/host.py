"""What localkube needs of the machine: packages, sysctls, a bridge. Each change is printed first, with its undoing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from localkube import spec
from localkube.components import Component
from localkube.errors import HostError

# What must be on the PATH, and the Debian package that brings it.
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "ip": "iproute2",
    "mount": "mount",
}
CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
SBIN = "/usr/sbin:/sbin"
SYSCTLS = Path("/proc/sys")
IP_FORWARD = "net.ipv4.ip_forward"
# Shows frames between ports of a bridge to the hooks of IP: Services and policies need it between pods of one node.
BRIDGE_FILTER = "net.bridge.bridge-nf-call-iptables"
# The kubelet sets these host-wide when it starts.
KUBELET_SYSCTLS = ("vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops")


def search_path() -> str:
    """Return the PATH that our daemons get: root's programs may be missing from a user's."""
    return f"{os.environ.get('PATH', '')}:{SBIN}"


def program(name: str) -> str:
    """Return the path of a program; raises HostError naming its package."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise HostError(f"`{name}` is not installed (Debian package {PROGRAMS.get(name, name)})")
    return found


def cni_folder() -> Path:
    """Return where the CNI plugins are; raises HostError naming the package."""
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists() and (folder / "host-local").exists():
            return folder
    raise HostError(f"no CNI plugins in {', '.join(map(str, CNI_FOLDERS))} (Debian package {CNI_PACKAGE})")


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are absent, sorted."""
    absent = {package for name, package in PROGRAMS.items() if shutil.which(name, path=search_path()) is None}
    try:
        cni_folder()
    except HostError:
        absent.add(CNI_PACKAGE)
    return sorted(absent)


def ensure_packages(say: Callable[[str], None]) -> None:
    """Install what is missing.

    Raises:
        HostError: not a Debian, or apt-get failed; the text has its last lines.
    """
    packages = missing_packages()
    if not packages:
        return
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise HostError(f"please install {names}: this machine has no apt-get")
    say(f"installing Debian packages: {names} (undo: apt-get purge --autoremove {names})")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends", *packages]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            lines = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
            raise HostError(f"`{' '.join(command)}` failed ({done.returncode}):\n{lines}")


def check_root() -> None:
    """Stop unless root; raises HostError."""
    if os.geteuid() != 0:
        raise HostError("localkube makes a bridge, mounts and cgroups, so it must run as root (sudo)")


def _sysctl_file(name: str, root: Path = SYSCTLS) -> Path:
    return root / name.replace(".", "/")


def read_sysctls(root: Path = SYSCTLS) -> dict[str, str]:
    """Return the present values of all that a running cluster changes; of those that this kernel has."""
    files = {name: _sysctl_file(name, root) for name in (IP_FORWARD, BRIDGE_FILTER, *KUBELET_SYSCTLS)}
    return {name: file.read_text("ascii").strip() for name, file in files.items() if file.exists()}


def restore_sysctls(saved: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Write back the named sysctls where they differ; return those that were changed."""
    now = read_sysctls()
    changed = [name for name in names if name in saved and saved[name] != now.get(name, saved[name])]
    for name in changed:
        _sysctl_file(name).write_text(saved[name], "ascii")
    return changed


def load_record(path: Path) -> dict[str, str] | None:
    """Return the sysctls saved at the first change; None without a (whole) record."""
    try:
        return {str(name): str(value) for name, value in json.loads(path.read_text("utf-8"))["sysctls"].items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def save_record(path: Path) -> dict[str, str]:
    """Write down the sysctls, unless a run before did so already; return the saved ones."""
    saved = load_record(path)
    if saved is None:
        saved = read_sysctls()
        path.parent.mkdir(parents=True, exist_ok=True)
        building = path.with_suffix(".partial")
        building.write_text(json.dumps({"sysctls": saved}), "utf-8")
        building.rename(path)
    return saved


def ensure_forwarding(say: Callable[[str], None]) -> None:
    """Let the kernel pass packets between pods and services."""
    if read_sysctls()[IP_FORWARD] != "1":
        say(f"setting sysctl {IP_FORWARD}=1 (undo: `python -m localkube down`, or sysctl -w {IP_FORWARD}=0)")
        _sysctl_file(IP_FORWARD).write_text("1", "ascii")


def load_bridge_module(say: Callable[[str], None]) -> None:
    """Load what shows frames on a bridge to the hooks of IP, where it is a module; what fails is seen by its sysctl."""
    if modprobe := shutil.which("modprobe", path=search_path()):
        say("loading kernel module br_netfilter (undo: modprobe -r br_netfilter)")
        subprocess.run([modprobe, "br_netfilter"], capture_output=True, check=False)


def ensure_bridge_filter(
    say: Callable[[str], None],
    *,
    root: Path = SYSCTLS,
    load_module: Callable[[Callable[[str], None]], None] = load_bridge_module,
) -> None:
    """Let policies see what goes from pod to pod on the bridge; say so where this kernel cannot."""
    if BRIDGE_FILTER not in read_sysctls(root):
        load_module(say)
    now = read_sysctls(root).get(BRIDGE_FILTER)
    if now is None:
        say("this kernel has no br_netfilter: NetworkPolicies hold between nodes, not between pods of one")
    elif now != "1":
        say(f"setting sysctl {BRIDGE_FILTER}=1 (undo: `python -m localkube down`, or sysctl -w {BRIDGE_FILTER}={now})")
        _sysctl_file(BRIDGE_FILTER, root).write_text("1", "ascii")


def bridge_exists(name: str = spec.BRIDGE) -> bool:
    """Return whether a network interface of this name is there."""
    return (Path("/sys/class/net") / name).exists()


def _ip(*arguments: str) -> None:
    done = subprocess.run([program("ip"), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def ensure_bridge(say: Callable[[str], None]) -> None:
    """Make the node's bridge with its address, up; raises HostError."""
    if not bridge_exists():
        say(f"making bridge {spec.BRIDGE} with {spec.NODE_IP} (undo: ip link delete {spec.BRIDGE})")
        # A fixed hardware address, or the bridge would take its ports' and change it with every pod.
        _ip("link", "add", spec.BRIDGE, "address", spec.BRIDGE_MAC, "type", "bridge")
    prefix = spec.POD_CIDR.partition("/")[2]
    _ip("address", "replace", f"{spec.NODE_IP}/{prefix}", "dev", spec.BRIDGE)
    _ip("link", "set", spec.BRIDGE, "up")


def remove_bridge() -> bool:
    """Remove the bridge; tell whether there was one."""
    if not bridge_exists():
        return False
    _ip("link", "delete", spec.BRIDGE)
    return True


def clash(component: Component) -> str | None:
    """Return the first address of a component that somebody else listens on; None if all are free."""
    for host, port in component.listens:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return f"{host}:{port}"
    return None


def remove_tree(folder: Path) -> None:
    """Remove a folder; safe if it is absent."""
    shutil.rmtree(folder, ignore_errors=True)
