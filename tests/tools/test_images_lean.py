"""What operator and gateway images leave out, and how two builds of them are compared."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.images import content, stages
from tools.images.__main__ import reproducible
from tools.images.reproduce import Built, differences
from tools.images.settings import ImagesFailed, Settings
from tools.images.store import Store

BEFORE, _ = stages.split((ROOT / "Dockerfile").read_text())
ARGUMENTS = dict(re.findall(r'ARG (\w+)="([^"]*)"', "\n".join(BEFORE)))
# Imports every module of what an image holds in an environment where what the image leaves out cannot be imported.
IMPORT_ALL = """
import fnmatch, importlib, pkgutil, sys
patterns = PATTERNS
class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
sys.meta_path.insert(0, Absent())
for name in PACKAGES:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if "testing" not in module.name:
            importlib.import_module(module.name)
"""


def left_out_modules() -> list[str]:
    """Return the patterns of the files that the images leave out, as patterns of modules."""
    inside = [path.partition("/site-packages/")[2] for path in ARGUMENTS["GENERATED"].split() if path != "\\"]
    return [path.removesuffix(".py").replace("/", ".") for path in inside]


def import_all(*packages: str, left_out: list[str]) -> subprocess.CompletedProcess[str]:
    script = IMPORT_ALL.replace("PATTERNS", repr(left_out)).replace("PACKAGES", repr(packages))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("part", ["operator", "gateway"])
def test_a_program_needs_nothing_of_what_its_image_leaves_out(part: str):
    assert left_out_modules() == ["kubernetes.client.api.*_api", "kubernetes.aio.client.api.*_api"]
    done = import_all("dormouse_api", "dormouse_kube", f"dormouse_{part}", left_out=left_out_modules())
    assert done.returncode == 0, done.stderr


def test_leaving_out_what_a_program_needs_would_be_seen():
    done = import_all("dormouse_kube", left_out=["kubernetes.aio.client.api_client"])
    assert "kubernetes.aio.client.api_client is not in the image" in done.stderr


def test_files_that_are_left_out_are_taken_from_the_list_of_installed_files_too():
    for path, is_left_out in {
        "kubernetes/client/api/core_v1_api.py": True,
        "kubernetes/aio/client/api/apps_v1_api.py": True,
        "kubernetes/client/api/__init__.py": False,
        "kubernetes/client/models/v1_pod.py": False,
    }.items():
        installed = f"/opt/venv/lib/python3.11/site-packages/{path}"
        patterns = [pattern for pattern in ARGUMENTS["GENERATED"].split() if pattern != "\\"]
        assert any(fnmatch.fnmatch(installed, pattern) for pattern in patterns) is is_left_out
        assert bool(re.match(ARGUMENTS["GENERATED_IN_RECORD"], f"{path},sha256=abc,1")) is is_left_out


@pytest.mark.parametrize("part", content.PARTS)
def test_bytecode_of_images_without_times_does_not_ask_for_the_times_of_sources(part: str):
    text = stages.text_under((ROOT / "Dockerfile").read_text(), part)
    assert "pip install --quiet --no-compile" in text
    in_environment, of_code = re.findall(r"--invalidation-mode (\S+)", text)
    assert in_environment == of_code == "unchecked-hash"


def test_two_builds_with_the_same_digests_do_not_differ():
    assert differences("operator", Built("a", ("x", "y")), Built("a", ("x", "y"))) == []


def test_each_digest_that_differs_is_told():
    assert differences("operator", Built("a", ("x", "y")), Built("b", ("x", "z", "w"))) == [
        "operator: the configuration is a once and b then",
        "operator: layer 2 is y once and z then",
        "operator: layer 3 is none once and w then",
    ]


def test_all_parts_are_reproduced_unless_one_is_named_and_no_other():
    assert reproducible([]) == ["operator", "gateway", "worker"]
    assert reproducible(["gateway"]) == ["gateway"]
    with pytest.raises(ImagesFailed, match="PART 'wheel' is none of operator, gateway, worker"):
        reproducible(["wheel"])


BUILDAH = """#!{python}
import json, sys
if "images" in sys.argv:
    print(json.dumps([{{"id": name, "names": [name]}} for name in ("older", "newer", "oldest")]))
"""


def test_images_without_a_time_of_their_own_are_as_old_as_their_place_in_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text(BUILDAH.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    settings = Settings(cache=tmp_path)
    for age, name in enumerate(("newer", "older", "oldest")):
        folder = settings.storage / "overlay-images" / f"{name}0123"
        folder.mkdir(parents=True)
        os.utime(folder, (1000 - age, 1000 - age))
    assert Store(settings).names_by_age() == ["newer", "older", "oldest"]
