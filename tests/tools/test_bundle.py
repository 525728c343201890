"""The folder for clusters without a network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.bundle import CHECKSUMS, fill
from tools.images import content
from tools.images.build import Names

VERSION = content.VERSION
NAMES = Names("r.example/d", "today", {})


class FakeHands:
    """Writes small files where the real ones are; fails on the image that it is told to."""

    def __init__(self, failing_image: str = "") -> None:
        self.failing_image = failing_image

    def package_chart(self, folder: Path) -> None:
        (folder / f"dormouse-{VERSION}.tgz").write_text("chart")

    def save_image(self, image: str, path: Path) -> None:
        if image == self.failing_image:
            raise RuntimeError(image)
        path.write_text(image)

    def collect_cli(self, folder: Path) -> None:
        (folder / f"dormouse-{VERSION}-py3-none-any.whl").write_text("wheel")


def check(folder: Path) -> int:
    return subprocess.run(
        ["sha256sum", "--check", "--quiet", "--strict", CHECKSUMS], cwd=folder, capture_output=True, check=False
    ).returncode


def test_everything_is_there_and_nothing_of_an_earlier_bundle(tmp_path: Path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "of-yesterday").touch()
    fill(folder, NAMES, FakeHands())
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    per_part = {name for part in content.PARTS for name in (f"images/{part}.tar", f"sbom/{part}.cdx.json")}
    wheel = f"cli/dormouse-{VERSION}-py3-none-any.whl"
    assert found == {f"dormouse-{VERSION}.tgz", wheel, "INSTALL.txt", CHECKSUMS, *per_part}


def test_the_images_have_the_names_that_the_chart_asks_for(tmp_path: Path):
    fill(tmp_path / "bundle", NAMES, FakeHands())
    assert (tmp_path / "bundle/images/gateway.tar").read_text() == f"r.example/d/gateway:{VERSION}"


def test_sha256sum_finds_every_file_as_it_was_and_notices_a_change(tmp_path: Path):
    folder = tmp_path / "bundle"
    fill(folder, NAMES, FakeHands())
    assert check(folder) == 0
    assert len((folder / CHECKSUMS).read_text().splitlines()) == sum(path.is_file() for path in folder.rglob("*")) - 1
    (folder / "images" / "worker.tar").write_text("another")
    assert check(folder) == 1


def test_a_bundle_that_is_not_whole_has_no_checksums(tmp_path: Path):
    folder = tmp_path / "bundle"
    fill(folder, NAMES, FakeHands())
    with pytest.raises(RuntimeError):
        fill(folder, NAMES, FakeHands(failing_image=f"r.example/d/worker:{VERSION}"))
    assert not (folder / CHECKSUMS).exists()


def test_the_guide_names_files_that_are_there(tmp_path: Path):
    folder = tmp_path / "bundle"
    fill(folder, NAMES, FakeHands())
    text = (folder / "INSTALL.txt").read_text()
    named = re.findall(rf"images/operator\.tar|dormouse-{re.escape(VERSION)}\.tgz|{CHECKSUMS}", text)
    assert {"images/operator.tar", f"dormouse-{VERSION}.tgz", CHECKSUMS} == set(named)
    assert all((folder / name).exists() for name in named)
    assert "{" not in text
