"""A worker class of one's own and one's own methods: what goes in, and what is refused by name."""

import msgspec
import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.executor.worker.classes import resolve_worker_class
from dormouse_worker.executor.worker.cpu_worker import CpuWorker

CPU = "dormouse_worker.executor.worker.cpu_worker.CpuWorker"
WORKERS = """
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.executor.worker.base import WorkerBase

class Own(CpuWorker):
    def _note(self):
        pass

class Half(WorkerBase):
    def init_device(self):
        pass

class Ready(CpuWorker):
    answer = 42

number = 3
"""
EXTENSIONS = """
class Harmless:
    greeting = "hello"

    def greet(self):
        return f"{self.greeting} from rank {self.rank}"

class Clashing:
    def sleep(self, level):
        pass

    def load_model(self):
        pass

class Private:
    def _note(self):
        pass

class Settled:
    settings = None

class Building:
    def __init__(self):
        self.ready = True

class Meta(type):
    pass

class Foreign(metaclass=Meta):
    pass
"""


@pytest.fixture
def own(own_module):
    own_module("own_workers", WORKERS)
    own_module("own_extensions", EXTENSIONS)


@pytest.mark.usefixtures("own")
class TestWorkerClass:
    """`--worker-cls`."""

    def test_a_class_of_ones_own_is_found_by_its_name(self):
        assert issubclass(resolve_worker_class("own_workers.Own"), CpuWorker)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("own_nowhere.Own", r"worker_cls is 'own_nowhere\.Own', but importing own_nowhere fails: ModuleNotFound"),
            ("own_workers.Nobody", r"own_workers has no Nobody"),
            ("own_workers.number", r"which is no class but a int"),
            ("own_extensions.Harmless", r"which is no WorkerBase; derive it from one"),
            ("own_workers.Half", r"which leaves out .*execute_model, .*wake_up"),
        ],
    )
    def test_what_is_no_worker_is_refused_with_its_name(self, name, words):
        with pytest.raises(InvalidSettings, match=words):
            resolve_worker_class(name)

    def test_whatever_a_module_raises_is_told(self, own_module):
        own_module("own_broken", "import os\nos.nothing_there\n")
        with pytest.raises(InvalidSettings, match=r"importing own_broken fails: AttributeError: .*nothing_there"):
            resolve_worker_class("own_broken.Worker")
        own_module("own_unreadable", "def (:\n")
        with pytest.raises(InvalidSettings, match="importing own_unreadable fails: SyntaxError"):
            resolve_worker_class("own_unreadable.Worker")


@pytest.mark.usefixtures("own")
class TestExtension:
    """`--worker-extension-cls`."""

    def test_its_methods_are_the_workers_and_see_the_worker(self, worker_settings):
        of_a_group = msgspec.structs.replace(worker_settings, tensor_parallel_size=4)
        worker = resolve_worker_class(CPU, "own_extensions.Harmless")(of_a_group, 3)
        assert isinstance(worker, CpuWorker)
        assert worker.greet() == "hello from rank 3"
        assert type(worker).__name__ == "CpuWorker"

    def test_the_workers_own_class_stays_as_it_was(self):
        before = CpuWorker.__bases__
        resolve_worker_class(CPU, "own_extensions.Harmless")
        assert CpuWorker.__bases__ == before
        assert not hasattr(CpuWorker, "greet")

    def test_it_goes_with_a_class_of_ones_own(self):
        both = resolve_worker_class("own_workers.Ready", "own_extensions.Harmless")
        assert (both.answer, both.greeting) == (42, "hello")

    def test_a_class_that_has_it_already_is_taken_as_it_is(self, own_module):
        own_module(
            "own_both",
            "from own_workers import Own\nfrom own_extensions import Harmless\nclass Both(Own, Harmless): pass\n",
        )
        assert resolve_worker_class("own_both.Both", "own_extensions.Harmless").__name__ == "Both"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("Clashing", "has load_model, sleep, which Own has too; choose another name"),
            ("Private", "has _note, which Own has too"),
            ("Settled", "has settings, which Own has too"),
            ("Building", "whose __init__ would never run"),
            ("Foreign", "cannot be mixed into Own: metaclass conflict"),
            ("Nobody", "own_extensions has no Nobody"),
        ],
    )
    def test_what_can_not_be_mixed_in_is_refused_with_the_names(self, name, words):
        with pytest.raises(InvalidSettings, match=f"worker_extension_cls is 'own_extensions.{name}'.*{words}"):
            resolve_worker_class("own_workers.Own", f"own_extensions.{name}")
