"""Talk to our containerd: containers of the kubelet's namespace, the pause image, pulls through the CRI."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from localkube import host, oci, spec
from localkube.errors import ComponentError, HostError
from localkube.spec import Paths

NAMESPACE = "k8s.io"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PULL_TIMEOUT_S = 900.0


def _ctr(paths: Paths, *arguments: str, stdin: bytes | None = None) -> str:
    command = [host.program("ctr"), "--address", str(paths.containerd_socket), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise ComponentError(f"containerd: `ctr {' '.join(arguments)}` failed ({done.returncode}): {text}")
    return done.stdout.decode("utf-8", "replace")


def ensure_pause_image(paths: Paths, binaries: Path) -> None:
    """Import the image that holds every pod's namespaces; raises ComponentError."""
    ensure_program_image(paths, spec.PAUSE_IMAGE, binaries / "pause", file="entry")


def ensure_program_image(paths: Paths, image: str, program: Path, *, file: str) -> None:
    """Import an image whose only file, /`file`, is a static program, unless it is there; raises ComponentError."""
    if image in _ctr(paths, "images", "list", "--quiet").split():
        return
    machine = platform.machine()
    architecture = ARCHITECTURES.get(machine, machine)
    archive = oci.image_archive(image, program.read_bytes(), architecture=architecture, file=file)
    _ctr(paths, "images", "import", "-", stdin=archive)


def remove_containers(paths: Paths) -> int:
    """Kill and remove every container of the kubelet's namespace; return how many there were. Images stay."""
    for task in _ctr(paths, "tasks", "list", "--quiet").split():
        _try_ctr(paths, "tasks", "delete", "--force", task)
    containers = _ctr(paths, "containers", "list", "--quiet").split()
    if containers:
        _try_ctr(paths, "containers", "delete", *containers)
    return len(containers)


def _try_ctr(paths: Paths, *arguments: str) -> None:
    """Run ctr where a failure is mended later: what survives is ended through its cgroup and its shim."""
    try:
        _ctr(paths, *arguments)
    except ComponentError:
        return


def _field(number: int, payload: bytes) -> bytes:
    """Return one length-delimited protobuf field (payloads here are shorter than 16 KiB)."""
    size = len(payload)
    length = bytes([size]) if size < 128 else bytes([size % 128 + 128, size // 128])
    return bytes([number << 3 | 2]) + length + payload


def _image_call(paths: Paths, method: str, image: str) -> None:
    """Call one method of the CRI's ImageService whose request is just an image's name (field 1 of field 1)."""
    try:
        import grpc
    except ImportError as error:
        raise HostError("the Python package `grpcio` is missing; run `make install`") from error
    with grpc.insecure_channel(f"unix://{paths.containerd_socket}") as channel:
        # The messages are bytes already.
        call = channel.unary_unary(f"/runtime.v1.ImageService/{method}", bytes, bytes)
        try:
            call(_field(1, _field(1, image.encode())), timeout=PULL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ComponentError(f"containerd: {method} of {image} failed: {error.details()}") from error


def pull(paths: Paths, image: str) -> None:
    """Pull as the kubelet would: the tag is resolved anew, layers that are here stay; raises ComponentError."""
    _image_call(paths, "PullImage", image)


def remove_image(paths: Paths, image: str) -> None:
    """Forget an image; running containers keep theirs. Safe if it is unknown; raises ComponentError."""
    _image_call(paths, "RemoveImage", image)


def images(paths: Paths) -> list[str]:
    """Return the names of all images; raises ComponentError."""
    return _ctr(paths, "images", "list", "--quiet").split()
