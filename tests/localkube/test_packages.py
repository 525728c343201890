"""A Debian package's programs in a folder of ours, with stand-ins for apt-get and dpkg."""

from __future__ import annotations

from pathlib import Path

import pytest

from localkube.errors import HostError
from localkube.packages import Package, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths

THING = Package("thing", ("do-it",))
UNPACK = 'mkdir -p "$3/usr/bin" && echo unpacked > "$3/usr/bin/%s"'


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put shell scripts before everything else on the PATH, for the names that are given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path / "cache"))

    def make(**scripts: str) -> Path:
        for name, script in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text(f'#!/bin/sh\necho "$@" >> {folder / "calls"}\n{script}\n')
            path.chmod(0o755)
        return folder / "calls"

    return make


def test_the_programs_lie_there_after_one_download(stand_in, tmp_path):
    calls = stand_in(apt_get="touch thing_1.deb", dpkg=UNPACK % "do-it")
    for _ in range(2):
        folder = ensure_package(Paths(tmp_path), THING, Progress())
        assert (folder / "do-it").read_text() == "unpacked\n"
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["download", "-x"]
    assert list(folder.parent.parent.glob("*.deb")) == []


def test_what_packages_there_are_is_asked_for_where_the_first_download_fails(stand_in, tmp_path):
    knows = tmp_path / "knows"
    calls = stand_in(
        apt_get=f'if [ "$1" = update ]; then touch {knows}; else [ -e {knows} ] && touch thing_1.deb; fi',
        dpkg=UNPACK % "do-it",
    )
    ensure_package(Paths(tmp_path), THING, Progress())
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["download", "update", "download", "-x"]


def test_a_failed_download_is_told_and_leaves_nothing(stand_in, tmp_path):
    stand_in(apt_get="echo no network >&2; exit 100")
    with pytest.raises(HostError, match="no network"):
        ensure_package(Paths(tmp_path), THING, Progress())
    assert list(Paths(tmp_path).extras.iterdir()) == []


def test_a_package_without_the_program_is_refused(stand_in, tmp_path):
    stand_in(apt_get="touch thing_1.deb", dpkg=UNPACK % "another")
    with pytest.raises(HostError, match="no program do-it"):
        ensure_package(Paths(tmp_path), THING, Progress())
    assert list(Paths(tmp_path).extras.iterdir()) == []
