"""What travels to a machine with a GPU is what it lacks: locked, complete, and not too large."""

import pytest

from tools.bootstrap import LOCK_FILE
from tools.gpu_wheels import MAX_BYTES, MISSING, PRESENT, check, download, imported_names, locked

LOCK = (
    "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab\n    # via b\nmsgspec==2 \\\n    --hash=sha256:ba\nz==3\n"
)


def test_what_the_programs_import_is_there_or_travels_and_nothing_else_does():
    imported = imported_names()
    assert imported <= PRESENT | MISSING
    assert imported >= MISSING
    assert not MISSING & PRESENT


def test_a_package_comes_in_the_locked_version_with_its_hashes():
    assert locked("a", LOCK) == "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:ab"
    assert locked("msgspec", LOCK) == "msgspec==2 \\\n    --hash=sha256:ba"
    assert all(locked(name, LOCK_FILE.read_text()).count("--hash=") > 1 for name in MISSING)


def test_what_is_not_locked_does_not_travel():
    with pytest.raises(ValueError, match=r"b is not in dev\.txt"):
        locked("b", LOCK)


def test_the_download_is_for_the_machines_python_and_asks_for_hashes(tmp_path):
    calls = []
    download(sorted(MISSING), tmp_path, calls.append)
    (arguments,) = calls
    assert {"--no-deps", "--require-hashes", "--python-version=3.12", f"--dest={tmp_path}"} <= {*arguments}
    assert any(argument.startswith("--platform=manylinux") for argument in arguments)


def make_wheels(folder, num_bytes):
    """Return an empty file for each wheel that travels, and one that has so many bytes."""
    paths = [folder / f"{name}-1.0-cp312-cp312-manylinux2014_x86_64.whl" for name in sorted(MISSING)]
    for path in paths:
        path.touch()
    with paths[0].open("wb") as file:
        file.truncate(num_bytes)
    return paths


def test_wheels_that_can_be_carried_pass(tmp_path):
    check(make_wheels(tmp_path, MAX_BYTES))


def test_wheels_that_are_too_large_are_refused_with_the_numbers(tmp_path):
    with pytest.raises(SystemExit, match=f"have {MAX_BYTES + 1} bytes; no more than {MAX_BYTES}"):
        check(make_wheels(tmp_path, MAX_BYTES + 1))


def test_a_package_that_did_not_come_is_named():
    with pytest.raises(SystemExit, match="downloaded nothing; needed llguidance, msgspec"):
        check([])
