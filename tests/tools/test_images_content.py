"""The tag of the images: a digest of what they are made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dormouse_operator.manifests.arguments import ENGINE_PYTHONS
from dormouse_operator.model.wanted import VLLM
from tools.bootstrap import ROOT
from tools.images import content, stages


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small tree with every file that the tag counts."""
    for name in (
        *content.RECIPE,
        *content.LOCKS,
        content.VLLM_LOCK,
        *(f"{package}/__init__.py" for package in content.PACKAGES),
    ):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (tmp_path / "tree" / "Dockerfile").write_text("".join(f"FROM base AS {part}-env\n" for part in content.PARTS))
    return tmp_path / "tree"


def test_a_clone_with_other_file_times_has_the_same_tag(source: Path, tmp_path: Path):
    clone = Path(shutil.copytree(source, tmp_path / "clone"))
    for path in clone.rglob("*"):
        os.utime(path, (1, 1))
    assert content.tag(clone) == content.tag(source)


@pytest.mark.parametrize("name", [*content.RECIPE, *content.LOCKS, "gateway/dormouse_gateway/__init__.py"])
def test_every_counted_file_changes_the_tag(source: Path, name: str):
    before = content.tag(source)
    (source / name).write_text("changed\n")
    assert content.tag(source) != before


def test_a_new_file_that_git_does_not_know_changes_the_tag(source: Path):
    before = content.tag(source)
    (source / "operator/dormouse_operator/new.py").touch()
    assert content.tag(source) != before


def test_a_file_that_became_executable_changes_the_tag(source: Path):
    before = content.tag(source)
    (source / "Dockerfile").chmod(0o755)
    assert content.tag(source) != before


def test_bytecode_and_other_folders_do_not_count(source: Path):
    before = content.tag(source)
    (source / "api/dormouse_api/__pycache__").mkdir()
    (source / "api/dormouse_api/__pycache__/x.cpython-311.pyc").touch()
    (source / "README.md").touch()
    assert content.tag(source) == before


def test_helm_reads_the_tag_as_a_word_never_as_a_number(source: Path):
    assert re.fullmatch(r"\d+\.\d+\.\d+-[0-9a-f]{12}", content.tag(source))


def test_the_environment_changes_with_its_own_lock_only(source: Path):
    def tags() -> dict[str, str]:
        return {part: content.environment_tag(source, part, "base") for part in content.PARTS}

    before = tags()
    (source / "requirements/worker.txt").write_text("torch==9\n")
    (source / "worker_image/dormouse_worker/__init__.py").write_text("changed\n")
    changed = [part for part in content.PARTS if tags()[part] != before[part]]
    assert changed == ["worker"]


def test_a_changed_stage_changes_the_environments_that_stand_on_it(source: Path):
    def changed(old: str, new: str) -> list[str]:
        before = {part: content.environment_tag(source, part, "base") for part in content.PARTS}
        recipe = (source / "Dockerfile").read_text()
        assert old in recipe
        (source / "Dockerfile").write_text(recipe.replace(old, new))
        return [part for part in content.PARTS if content.environment_tag(source, part, "base") != before[part]]

    shutil.copy(ROOT / "Dockerfile", source / "Dockerfile")
    assert changed("FROM base AS code", "FROM base AS code\nRUN true") == []
    assert changed("FROM operator-env AS operator", "FROM operator-env AS operator\nRUN true") == []
    assert changed("FROM base AS worker-env", "# heavy\nFROM base AS worker-env") == []
    assert changed("FROM base AS worker-env", "FROM base AS worker-env\nRUN true") == ["worker"]
    assert changed("/usr/local/bin/pip*", "/usr/local/bin/pip3*") == ["operator", "gateway"]
    assert changed("WORKDIR /opt/dormouse", "WORKDIR /opt") == list(content.PARTS)


def test_the_build_sees_exactly_the_folders_that_the_tag_counts():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {"requirements/*.txt", content.VLLM_LOCK, *content.PACKAGES}


def test_the_dockerfile_copies_every_package_that_the_tag_counts():
    copied = set(re.findall(r"^COPY (\S+/dormouse_\w+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == set(content.PACKAGES)


def test_the_worker_with_vllm_is_a_worker_that_has_it_where_the_operator_looks():
    _, all_stages = stages.split((ROOT / "Dockerfile").read_text())
    mine, environment = all_stages["worker-vllm"], all_stages["vllm-env"]
    folder = ENGINE_PYTHONS[VLLM].removesuffix("/bin/python")
    assert mine[0] == "FROM worker AS worker-vllm"
    assert f"COPY --from=vllm-env {folder}/ {folder}/" in mine
    assert f"python3 -m venv {folder} " in environment[-1]
    users = [line for line in [*all_stages["worker"], *mine] if line.startswith("USER")]
    assert users[-1] == users[0], "it runs as the worker does"
    needed = {name for part in content.PARTS for name in stages.stages_under(all_stages, part)}
    assert not {"worker-vllm", "vllm-env"} & needed, "nobody else's image changes for it"


def test_the_revision_is_the_commit_and_says_when_the_sources_are_others(source: Path):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        return subprocess.run(
            ["git", "-C", str(source), *who, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert content.revision(source) == ""
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message=one")
    assert content.revision(source) == git("rev-parse", "HEAD")
    (source / "Dockerfile").write_text("changed\n")
    assert content.revision(source) == f"{git('rev-parse', 'HEAD')}-dirty"


def test_every_image_says_where_its_sources_are_and_which():
    text = (ROOT / "Dockerfile").read_text()
    for label in ('source="https://', 'revision="${REVISION}"'):
        assert text.count(f"org.opencontainers.image.{label}") == len(content.PARTS)
