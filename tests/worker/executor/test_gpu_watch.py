"""The watch beside the engine: it tells a fault once, ends when told, and explains passes that failed."""

import threading

from dormouse_worker.executor.gpu_watch import CONFIRM_LOOKS, GpuWatch, explain_failure
from dormouse_worker.model.memory.gpu_health import HealthCheck
from dormouse_worker.model.memory.testing_nvml import FakeNvml


def test_a_fault_is_told_once_from_another_thread():
    nvml, told, done = FakeNvml(), [], threading.Event()
    nvml.xids.extend([79, 79])

    def tell(fault):
        told.append((fault.xid, threading.current_thread().name))
        done.set()

    watch = GpuWatch(HealthCheck(nvml), tell)
    watch.start()
    assert done.wait(90)
    watch.stop()
    assert told == [(79, "gpu-watch")]
    assert repr(watch) == "GpuWatch(HealthCheck(GPU-fake), off)"


def test_it_ends_when_told_and_tells_nothing_of_a_healthy_device():
    told = []
    watch = GpuWatch(HealthCheck(FakeNvml()), told.append)
    watch.start()
    watch.stop()
    watch.stop()
    assert told == []
    assert repr(watch).endswith("off)")


def test_failed_passes_are_explained_by_a_fault_that_comes_a_moment_later():
    nvml, waits = FakeNvml(), []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            nvml.xids.append(79)

    assert explain_failure(HealthCheck(nvml), wait).xid == 79
    assert len(waits) == 3


def test_passes_that_fail_on_a_healthy_device_are_not_blamed_on_it():
    waits = []
    assert explain_failure(HealthCheck(FakeNvml()), waits.append) is None
    assert len(waits) == CONFIRM_LOOKS
