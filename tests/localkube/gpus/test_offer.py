"""One run of the driver over real sockets: what is there while it runs, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from localkube import processes
from localkube.errors import ApiError, ComponentError, HostError
from localkube.gpus.objects import CLASS_PATH, DRIVER, Gpus
from localkube.gpus.offer import Offer, Stop, alone
from tests.localkube.gpus.kit import NODE_PATH, TIMEOUT_S, FakeApi, FakeKubelet, a_claim, asked, claim_path

GPUS = Gpus(2, "512Mi")


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path holds 107 bytes; pytest's own are long
        yield FakeKubelet(Path(folder))


class Run:
    """An offer that runs in a thread."""

    def __init__(self, api: FakeApi, kubelet: FakeKubelet, pool: ThreadPoolExecutor) -> None:
        self.said: list[str] = []
        self.spoke = threading.Semaphore(0)
        self.stop = Stop()
        self.ended: Future[None] = pool.submit(
            Offer(api, kubelet.root, kubelet.stand_ins, GPUS, self._hear, look_every_s=0.01).run, self.stop
        )

    def _hear(self, text: str) -> None:
        self.said.append(text)
        self.spoke.release()

    def hears(self, words: str) -> None:
        """Wait for the next line, which has to hold these words."""
        assert self.spoke.acquire(timeout=TIMEOUT_S)
        assert words in self.said[-1]

    def end(self) -> None:
        """Ask it to end, and wait."""
        self.stop.ask()
        self.ended.result(TIMEOUT_S)


@contextmanager
def running(api: FakeApi, kubelet: FakeKubelet) -> Iterator[Run]:
    """Run an offer; it is ended whatever the test finds."""
    with ThreadPoolExecutor(1) as pool:
        run = Run(api, kubelet, pool)
        try:
            yield run
        finally:
            run.stop.urge()


def files(kubelet: FakeKubelet) -> set[str]:
    """Return the sockets and the driver's own folder."""
    return {str(path.relative_to(kubelet.root)) for path in kubelet.root.rglob(f"*{DRIVER}*")}


def test_gpus_are_published_once_the_kubelet_has_taken_the_driver_and_nothing_is_left_of_it(kubelet: FakeKubelet):
    api = FakeApi(a_claim("a", "gpu-1"))
    with running(api, kubelet) as run:
        assert kubelet.register().name == DRIVER
        run.hears("gpu-0, gpu-1 of 512Mi")
        assert set(api.objects) >= {CLASS_PATH, GPUS.slice_path}
        assert [device.device_name for device in kubelet.prepare(asked("a"))["uid-a"].devices] == ["gpu-1"]
        assert [(path.name, (path / "memory").read_text()) for path in sorted(kubelet.stand_ins.iterdir())] == [
            ("gpu-0", f"{512 << 20}\n"),
            ("gpu-1", f"{512 << 20}\n"),
        ]
        del api.objects[claim_path(a_claim("a"))]
        assert kubelet.unprepare(asked("a"))["uid-a"].error == ""
        run.end()
    assert set(api.objects) == {NODE_PATH}
    assert files(kubelet) == set()
    assert not kubelet.stand_ins.exists()


def test_who_ends_it_before_the_kubelet_has_come_does_not_wait_for_it(kubelet: FakeKubelet):
    api = FakeApi()
    with running(api, kubelet) as run:
        run.end()
    assert (api.log, run.said, files(kubelet)) == ([], [], set())


def test_a_kubelet_that_refuses_ends_the_run_before_anything_is_published(kubelet: FakeKubelet):
    api = FakeApi()
    with running(api, kubelet) as run:
        kubelet.register(error="not you")
        with pytest.raises(ComponentError, match="not you"):
            run.ended.result(TIMEOUT_S)
    assert (api.log, files(kubelet)) == ([], set())


def test_an_api_server_that_refuses_the_slice_ends_the_run_and_leaves_no_socket(kubelet: FakeKubelet):
    api = FakeApi()
    api.failures = [ApiError("gone", status=404), ApiError("memory: quantities must match", status=422)]
    with running(api, kubelet) as run:
        kubelet.register()
        with pytest.raises(ApiError, match="quantities"):
            run.ended.result(TIMEOUT_S)
    assert files(kubelet) == set()


def test_without_its_node_nothing_is_begun(kubelet: FakeKubelet):
    api = FakeApi()
    del api.objects[NODE_PATH]
    with running(api, kubelet) as run, pytest.raises(ApiError, match="404"):
        run.ended.result(TIMEOUT_S)
    assert files(kubelet) == set()


def test_what_a_killed_driver_left_is_taken_over(kubelet: FakeKubelet):
    api = FakeApi()
    api.objects[GPUS.slice_path] = {"of": "before"}
    for stale in (kubelet.registry, kubelet.root / "plugins" / DRIVER / "dra.sock"):
        stale.parent.mkdir(parents=True)
        stale.touch()
    with running(api, kubelet) as run:
        kubelet.register()
        run.hears("gpu-0")
        assert api.log[0] == f"delete {GPUS.slice_path.rpartition('/')[2]}"
        assert "of" not in api.objects[GPUS.slice_path]
        run.end()
    assert files(kubelet) == set()


@pytest.mark.parametrize("path", [CLASS_PATH, GPUS.slice_path], ids=["class", "slice"])
def test_what_somebody_removed_comes_back_as_a_restarted_kubelet_does_with_the_slice(kubelet: FakeKubelet, path: str):
    api = FakeApi()
    with running(api, kubelet) as run:
        kubelet.register()
        run.hears("gpu-0")
        api.failures = [ApiError("away")]
        api.changed.clear()
        del api.objects[path]
        run.hears("will be published again: away")
        wait_for(lambda: path in api.objects, api.changed)
        run.end()
    assert set(api.objects) == {NODE_PATH}


def wait_for(check: Callable[[], bool], changed: threading.Event) -> None:
    """Wait for a change after which a check holds."""
    while not check():
        changed.clear()
        assert check() or changed.wait(TIMEOUT_S)


def test_a_driver_serves_on_until_pods_have_given_their_devices_back(kubelet: FakeKubelet):
    api = FakeApi(a_claim("a", "gpu-0"), a_claim("waits"))
    with running(api, kubelet) as run:
        kubelet.register()
        run.hears("gpu-0")
        run.stop.ask()
        run.hears("waiting for the end of ns/a (")
        assert GPUS.slice_path not in api.objects, "nobody is placed here any more"
        assert kubelet.unprepare(asked("a"))["uid-a"].error == ""
        del api.objects[claim_path(a_claim("a"))]
        run.ended.result(TIMEOUT_S)
    assert len(run.said) == 2
    assert files(kubelet) == set()


def test_whoever_asks_twice_does_not_wait_and_hears_what_it_means(kubelet: FakeKubelet):
    with running(FakeApi(a_claim("a", "gpu-0")), kubelet) as run:
        kubelet.register()
        run.hears("gpu-0")
        run.stop.ask()
        run.hears("waiting")
        run.end()
    assert "pods with ns/a cannot end" in run.said[-1]
    assert files(kubelet) == set()
    assert (kubelet.stand_ins / "gpu-0").exists(), "the pod that cannot end uses it yet"


def test_books_stay_where_a_killed_driver_is_followed_by_one_of_fewer_devices(kubelet: FakeKubelet):
    for name in ("gpu-0", "gpu-2"):
        (kubelet.stand_ins / name).mkdir(parents=True)
        (kubelet.stand_ins / name / "ledger").write_text("books")
    with running(FakeApi(), kubelet) as run:
        kubelet.register()
        run.hears("gpu-0")
        assert (kubelet.stand_ins / "gpu-0" / "ledger").read_text() == "books"
        assert not (kubelet.stand_ins / "gpu-2").exists()
        run.end()


def test_a_path_that_is_too_long_for_a_socket_is_named(tmp_path: Path):
    deep = FakeKubelet(tmp_path / ("d" * 100))
    with running(FakeApi(), deep) as run, pytest.raises(ComponentError, match="cannot listen at"):
        run.ended.result(TIMEOUT_S)


def test_there_is_one_driver_and_down_finds_it_by_its_pid_file(tmp_path: Path):
    pid_file = tmp_path / "pids" / "gpus.json"
    with alone(pid_file):
        assert processes.read_pid_file(pid_file) == processes.identify(os.getpid())
        with pytest.raises(HostError, match=f"pid {os.getpid()} offers GPUs already"), alone(pid_file):
            pass
    assert not pid_file.exists()


def test_the_note_of_a_killed_driver_stops_nobody(tmp_path: Path):
    pid_file = tmp_path / "gpus.json"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        identity = processes.identify(other.pid)
        assert identity is not None
        processes.write_pid_file(pid_file, identity)
        with pytest.raises(HostError, match=str(other.pid)), alone(pid_file):
            pass
        other.kill()
    with alone(pid_file):
        assert pid_file.exists()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([signal.SIGINT], (True, False)),
        ([signal.SIGINT, signal.SIGINT], (True, True)),
        ([signal.SIGTERM], (True, True)),
    ],
    ids=["Ctrl-C", "twice", "the end of the cluster"],
)
def test_a_signal_asks_or_urges(numbers: list[signal.Signals], expected: tuple[bool, bool]):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = Stop()
    try:
        stop.listen()
        for number in numbers:
            signal.raise_signal(number)
        assert (stop.asked.is_set(), stop.urged.is_set()) == expected
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_without_a_cluster_the_command_says_how_to_start_one(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "localkube", "gpus"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DORMOUSE_CACHE": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "start it with `python -m localkube up`" in done.stderr
