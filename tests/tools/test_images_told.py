"""What is told of the images: what is in them, and how big they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bootstrap import ROOT
from tools.images import base, content, sbom, sizes
from tools.images.build import Names
from tools.images.settings import ImagesFailed
from tools.images.sizes import MB, Size

NAMES = Names("r.example/d", "today", {part: part for part in content.PARTS})


class FakeStore:
    """A storage in which every image has 310 MB, 177 of them the base's, in three layers."""

    def sizes(self) -> dict[str, str]:
        return {base.base_name(): "177 MB", **{NAMES.image(part): "310 MB" for part in content.PARTS}}

    def num_layers(self, name: str) -> int:
        return {base.base_name(): 1}[name]


def manifest(*megabytes: int) -> dict[str, Any]:
    return {"layers": [{"size": size * MB} for size in megabytes]}


@pytest.mark.parametrize("part", content.PARTS)
def test_the_list_of_an_image_holds_its_whole_lock_file(part: str):
    listed = sbom.sbom(ROOT, part, "r.example/d")
    lock = (ROOT / "requirements" / f"{part}.txt").read_text()
    pinned = [line.split()[0] for line in lock.splitlines() if line[:1].isalnum()]
    assert pinned == [f"{c['name']}=={c['version']}" for c in listed["components"] if c["type"] == "library"]
    assert listed["metadata"]["component"]["name"] == f"r.example/d/{part}"


def test_each_thing_has_a_reference_of_its_own_and_the_image_depends_on_all():
    listed = sbom.sbom(ROOT, "worker", "r.example/d")
    references = [component["bom-ref"] for component in listed["components"]]
    assert len(set(references)) == len(references) > 10
    assert listed["dependencies"] == [{"ref": "image", "dependsOn": references}]


def test_the_same_sources_make_the_same_list_and_others_another(tmp_path: Path):
    def serial(part: str) -> object:
        return sbom.sbom(ROOT, part, "r.example/d")["serialNumber"]

    assert serial("operator") == serial("operator") != serial("gateway")
    first, again = (sbom.write(ROOT, tmp_path / name, "r") for name in ("one", "two"))
    assert [path.name for path in first] == [f"{part}.cdx.json" for part in content.PARTS]
    assert [path.read_text() for path in first] == [path.read_text() for path in again]
    assert json.loads(first[0].read_text())["bomFormat"] == "CycloneDX"


def test_sizes_are_those_over_the_base():
    found = sizes.sizes(FakeStore(), NAMES, lambda _: manifest(60, 40, 1))
    assert found[0] == Size("operator", 133 * MB, 41 * MB)
    assert str(found[0]) == "operator: 133 MB unpacked, 41 MB to download (over the base)"


def test_without_a_registry_nobody_knows_what_there_is_to_download():
    (size, *_) = sizes.sizes(FakeStore(), NAMES, lambda _: None)
    assert str(size) == "operator: 133 MB unpacked (over the base)"
    assert sizes.complaints([size]) == []


def test_an_image_over_its_budget_is_told_with_both_numbers():
    found = [
        Size("operator", 150 * MB, 60 * MB),
        Size("gateway", 151 * MB, None),
        Size("worker", 6_000 * MB, 4_001 * MB),
    ]
    assert sizes.complaints(found) == [
        "gateway is 151,000,000 bytes unpacked over its base; 150,000,000 are allowed",
        "worker is 4,001,000,000 bytes to download over its base; 4,000,000,000 are allowed",
    ]


@pytest.mark.parametrize(("text", "expected"), [("379 MB", 379 * MB), ("6.09 GB", 6_090 * MB), ("1.5 kB", 1500)])
def test_sizes_are_read_as_buildah_writes_them(text: str, expected: int):
    assert sizes.bytes_of(text) == expected


def test_a_size_that_is_none_is_told():
    with pytest.raises(ImagesFailed, match="'many'"):
        sizes.bytes_of("many")
