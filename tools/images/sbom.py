"""What is in an image, as CycloneDX JSON: the Python packages of its lock file, on Debian.

The same sources make the same text. Debian's own packages are those of the base image and not listed one by one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from pathlib import Path
from typing import Any

from tools import locks
from tools.images import base, content

NAMESPACE = uuid.UUID("8f3f2f1e-5b0e-5c8e-9d58-6a1d3f6f0b11")  # any fixed one: serial numbers follow from the content
IMAGE = "image"  # reference of the image itself within its list


def sbom(source: Path, part: str, repository: str) -> dict[str, Any]:
    """Return the list of a part's image."""
    path = f"requirements/{part}.txt"
    lock = (source / path).read_text()
    libraries = [_library(name, pin.version) for name, pin in locks.parse(lock).items()]
    system = {"type": "operating-system", "bom-ref": "base", "name": "debian", "version": base.SUITE}
    components = [system, *libraries]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, f'{part} {content.VERSION} {lock}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": IMAGE,
                "name": f"{repository}/{part}",
                "version": content.VERSION,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
            "properties": [
                {"name": "dormouse:lock", "value": path},
                {"name": "dormouse:lock:sha256", "value": hashlib.sha256(lock.encode()).hexdigest()},
            ],
        },
        "components": components,
        "dependencies": [{"ref": IMAGE, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _library(name: str, version: str) -> dict[str, str]:
    purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def write(source: Path, folder: Path, repository: str) -> list[Path]:
    """Write the list of each image to `folder`, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for part in content.PARTS:
        path = folder / f"{part}.cdx.json"
        path.write_text(json.dumps(sbom(source, part, repository), indent=2) + "\n")
        files.append(path)
    return files
