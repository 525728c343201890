"""Builds are named by their sources; half-written and outdated ones are removed."""

import random
from pathlib import Path

import pytest

from localkube import build, gotool
from localkube.errors import BuildError, HostError
from localkube.progress import Progress, human_bytes
from localkube.spec import Paths

SOURCES = [("a.go", b"one"), ("b.go", b"two"), ("go.mod", b"three")]


@pytest.fixture
def lines():
    return []


@pytest.fixture
def progress(lines):
    return Progress(clock=lambda: 0.0, write=lines.append)


def test_the_digest_does_not_depend_on_the_order_of_files():
    shuffled = random.Random(1).sample(SOURCES, len(SOURCES))
    assert build.digest_of(iter(shuffled)) == build.digest_of(iter(SOURCES))


@pytest.mark.parametrize(
    "changed",
    [
        [("a.go", b"one!"), *SOURCES[1:]],
        [("c.go", b"one"), *SOURCES[1:]],
        SOURCES[1:],
        [("a.go", b"onetwo"), ("b.go", b""), SOURCES[2]],
        [("a.gob", b"one"), *SOURCES[1:]],
        [("a.g", b"oone"), *SOURCES[1:]],
    ],
)
def test_the_digest_changes_with_any_name_or_content(changed):
    assert build.digest_of(iter(changed)) != build.digest_of(iter(SOURCES))


def test_the_whole_localkube_has_another_digest_than_its_go_sources():
    assert build.source_digest() != build.go_digest()


def test_who_changes_the_stand_in_gpus_may_keep_the_cluster_and_who_changes_anything_else_may_not(tmp_path):
    for name in ("cluster.py", "gpus/driver.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    before = build.source_digest(tmp_path)
    (tmp_path / "gpus" / "driver.py").write_text("2")
    assert build.source_digest(tmp_path) == before
    (tmp_path / "cluster.py").write_text("2")
    assert build.source_digest(tmp_path) != before


def test_the_linker_stamps_the_version_into_both_packages_that_report_it():
    flags = build.link_flags("v1.36.3")
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=36" in flags


def test_a_finished_build_is_taken_as_it_is(tmp_path, progress, lines):
    paths = Paths(tmp_path)
    build.bin_dir(paths).mkdir(parents=True)
    assert build.build(paths, progress) == build.bin_dir(paths)
    assert lines == []


def test_pruning_removes_old_and_half_written_builds_and_says_so(tmp_path, progress, lines):
    paths = Paths(tmp_path)
    for name in (build.go_digest(), "0ld", f"{build.go_digest()}.partial"):
        (paths.bin_root / name).mkdir(parents=True)
    build.prune_builds(paths, progress)
    assert [path.name for path in paths.bin_root.iterdir()] == [build.go_digest()]
    assert len(lines) == 2


def test_pruning_is_safe_where_nothing_was_built(tmp_path, progress):
    build.prune_builds(Paths(tmp_path / "none"), progress)
    build.prune_caches(Paths(tmp_path / "none"))


def test_caches_are_out_of_the_way_at_once_and_gone_soon(tmp_path):
    paths = Paths(tmp_path)
    for cache in ("build", "mod"):
        (paths.go / cache / "some").mkdir(parents=True)
    removing = build.discard_go_caches(paths)
    assert not (paths.go / "build").exists()
    assert removing.wait(90) == 0
    assert list(paths.go.iterdir()) == []
    assert build.discard_go_caches(paths).wait(90) == 0


def test_pruning_removes_what_a_killed_build_left_of_its_caches(tmp_path):
    paths = Paths(tmp_path)
    for cache in ("build", "mod", "discarded-7/mod"):
        (paths.go / cache).mkdir(parents=True)
    build.prune_caches(paths)
    assert list(paths.go.iterdir()) == []


def test_too_little_room_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(HostError, match=r"GiB free and building needs 1048576\.0 GiB.*DORMOUSE_CACHE"):
        build.check_free_space(tmp_path, 2**50, what="building")


def test_every_main_package_of_ours_is_built():
    own = {(m.folder, package.removeprefix("./")) for m in build.MODULES for package in m.binaries if "./" in package}
    found = {(p.parent.parent.name, p.parent.name) for p in build.TOOLS_DIR.rglob("main.go")}
    assert own == found


def test_a_failing_compiler_is_reported_with_module_log_and_last_lines(tmp_path, progress):
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho compiler says no\nexit 3\n")
    go.chmod(0o755)
    run = build._GoRun(go, tmp_path / "caches", tmp_path / "out", progress)
    with pytest.raises(BuildError, match=r"tools/node failed \(3\); log: .*node\.log\ncompiler says no"):
        build._build_module(build.MODULES[0], run)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.3 linux/amd64", (1, 26)),
        ("go version go1.27rc1 linux/arm64", (1, 27)),
        ("go version devel +abc", None),
        ("", None),
    ],
)
def test_the_toolchains_version_is_read(text, version):
    assert gotool.parse_go_version(text) == version


@pytest.mark.parametrize(("answer", "good"), [("go1.25.9", False), ("go1.26.0", True), ("go2.0.0", True)])
def test_a_toolchain_must_be_new_enough(tmp_path, answer, good):
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho go version {answer} linux/amd64\n")
    go.chmod(0o755)
    assert gotool._is_new_enough(Path(go)) is good


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**21, "2.0 MiB"), (3 * 2**40, "3072.0 GiB")],
)
def test_sizes_are_told_in_units_for_people(num_bytes, text):
    assert human_bytes(num_bytes) == text
