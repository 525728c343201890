"""The wrapper: late construction, calls by name, the failing method in the log."""

import pytest

from dormouse_worker.common.errors import InvalidArgument, InvalidSettings, ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.worker.wrapper import WorkerWrapper

SETTINGS = EngineSettings(model="/nowhere")
CPU_WORKER = "dormouse_worker.executor.worker.cpu_worker.CpuWorker"


def make_wrapper(worker_class=CPU_WORKER):
    return WorkerWrapper(SETTINGS, rank=0, worker_class=worker_class)


def test_the_environment_stands_before_the_worker_is_built():
    wrapper, environ = make_wrapper(), {"KEEP": "1"}
    wrapper.update_environment(environ, {"OMP_NUM_THREADS": "2"})
    assert environ == {"KEEP": "1", "OMP_NUM_THREADS": "2"}
    assert repr(wrapper) == f"WorkerWrapper(rank=0, {CPU_WORKER}, not built)"
    wrapper.init_worker()
    assert repr(wrapper) == f"WorkerWrapper(rank=0, {CPU_WORKER}, built)"
    with pytest.raises(AssertionError, match="before the worker is built"):
        wrapper.update_environment(environ, {})


def test_methods_are_called_by_name():
    wrapper = make_wrapper()
    wrapper.init_worker()
    assert wrapper.execute_method("get_memory_report") is None


def test_an_error_passes_through_and_the_log_names_rank_and_method(caplog):
    wrapper = make_wrapper()
    wrapper.init_worker()
    wrapper.execute_method("init_device")
    with pytest.raises(Exception, match="no such directory"):
        wrapper.execute_method("load_model")
    assert "rank 0: load_model raised" in caplog.text


def test_a_call_before_construction_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="init_worker comes before load_model"):
        make_wrapper().execute_method("load_model")


def test_a_class_that_is_no_worker_is_refused_by_name():
    with pytest.raises(
        InvalidSettings, match=r"worker_cls is 'dormouse_worker\.common\.host\.Host', which is no WorkerBase"
    ):
        make_wrapper("dormouse_worker.common.host.Host").init_worker()


def test_a_class_that_can_not_be_built_is_refused_with_what_it_raised(own_module):
    own_module(
        "own_builders",
        "from dormouse_worker.common.errors import ModelInvalid\n"
        "from dormouse_worker.executor.worker.cpu_worker import CpuWorker\n"
        "class Greedy(CpuWorker):\n"
        "    def __init__(self, settings, rank, size): ...\n"
        "class Picky(CpuWorker):\n"
        "    def __init__(self, settings, rank): raise ModelInvalid('not this one')\n",
    )
    with pytest.raises(InvalidSettings, match=r"'own_builders\.Greedy'.* \(settings, rank\): TypeError: .*'size'"):
        make_wrapper("own_builders.Greedy").init_worker()
    with pytest.raises(ModelInvalid, match="not this one"):
        make_wrapper("own_builders.Picky").init_worker()


def test_a_method_that_is_not_there_is_an_argument_out_of_range():
    wrapper = make_wrapper()
    wrapper.init_worker()
    for method in ("fly", "rank"):
        with pytest.raises(InvalidArgument, match=f"method is '{method}', which CpuWorker does not have"):
            wrapper.execute_method(method)
