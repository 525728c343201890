"""A wave starts what is missing, leaves what is ready, and names who failed and why."""

import sys
from pathlib import Path

import pytest

from localkube import processes, start
from localkube.components import Component
from localkube.errors import ComponentError
from localkube.probes import FileExists
from localkube.progress import Progress
from localkube.spec import Paths


@pytest.fixture
def paths(tmp_path):
    made = Paths(tmp_path)
    yield made
    for file in made.pids.glob("*.json"):
        processes.stop_by_file(file, grace_s=0.1)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def progress(lines):
    return Progress(clock=lambda: 0.0, write=lines.append)


def component(paths, code, **changes):
    mark = paths.root / "ready"
    argv = (sys.executable, "-c", f"import time, pathlib; mark = pathlib.Path({str(mark)!r}); {code}")
    return Component(**({"name": "part", "argv": argv, "ready": FileExists(mark)} | changes))


def test_a_component_is_started_once_and_then_left_alone(paths, progress, lines):
    part = component(paths, "mark.touch(); time.sleep(60)")
    start.run_wave(paths, (part,), progress)
    first = start.observe(paths, part)
    start.run_wave(paths, (part,), progress)
    assert start.observe(paths, part) == first
    assert first.text == "ready"
    assert len(lines) == 1


def test_a_component_that_was_killed_is_started_again(paths, progress):
    part = component(paths, "mark.touch(); time.sleep(60)")
    start.run_wave(paths, (part,), progress)
    first = processes.read_pid_file(start.pid_file(paths, "part"))
    processes.stop([first], grace_s=5)
    assert start.observe(paths, part).text == "down"
    start.run_wave(paths, (part,), progress)
    assert start.observe(paths, part).pid not in {None, first.pid}


def test_a_component_that_dies_is_named_with_its_last_words_and_its_log(paths, progress):
    part = component(paths, "print('no certificate'); raise SystemExit(3)")
    with pytest.raises(ComponentError, match=r"part ended (before it was ready|at once); log: .*part\.log") as caught:
        start.run_wave(paths, (part,), progress)
    assert "no certificate" in str(caught.value) or "at once" in str(caught.value)


def test_a_component_that_never_gets_ready_is_named_with_the_time_it_had(paths, progress):
    part = component(paths, "time.sleep(60)", timeout_s=0.2)
    with pytest.raises(ComponentError, match="part was not ready after 0 s"):
        start.run_wave(paths, (part,), progress)


def test_a_ready_mark_of_an_earlier_life_does_not_count(paths, progress):
    (paths.root / "ready").touch()
    part = component(paths, "time.sleep(60)", timeout_s=0.2)
    with pytest.raises(ComponentError, match="was not ready"):
        start.run_wave(paths, (part,), progress)


def test_an_address_that_somebody_else_has_is_named_before_anything_starts(paths, progress):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        part = component(paths, "mark.touch()", listens=(("127.0.0.1", port),))
        with pytest.raises(ComponentError, match=f"part needs 127.0.0.1:{port}, where another program listens"):
            start.run_wave(paths, (part,), progress)
    assert not start.pid_file(paths, "part").exists()


def test_components_see_nothing_of_the_callers_environment(paths, progress, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    out = paths.root / "env"
    code = f"import os; pathlib.Path({str(out)!r}).write_text(' '.join(os.environ)); mark.touch(); time.sleep(60)"
    start.run_wave(paths, (component(paths, code, env={"EXTRA": "1"}),), progress)
    assert {"PATH", "HOME", "EXTRA"} <= set(out.read_text().split())
    assert "HTTPS_PROXY" not in out.read_text()
    assert Path.home()
