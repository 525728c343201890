"""Pack one static binary as an OCI image archive that containerd can import. Pure: bytes in, bytes out."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import Any

OCI = "application/vnd.oci.image"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a tar of {name: (content, mode)}; owner root and time 0, so that the same input gives the same bytes."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha256(content)}", "size": len(content)}


def image_archive(name: str, binary: bytes, *, architecture: str, file: str) -> bytes:
    """Return an OCI archive with one image `name`, whose only file and entry point is /`file`."""
    layer = _tar({file: (binary, 0o755)})
    packed = gzip.compress(layer, mtime=0)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [f"/{file}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}"]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": _descriptor(f"{OCI}.config.v1+json", config),
            "layers": [_descriptor(f"{OCI}.layer.v1.tar+gzip", packed)],
        }
    )
    entry = _descriptor(f"{OCI}.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = _json({"schemaVersion": 2, "manifests": [entry]})
    blobs = {f"blobs/sha256/{_sha256(content)}": (content, 0o644) for content in (packed, config, manifest)}
    return _tar({"oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644), "index.json": (index, 0o644), **blobs})
