"""Workers on tiny models that see, and engines over them."""

import functools

import msgspec
import pytest

from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import EncodeImage
from dormouse_worker.engine.testing import ManualClock, make_add
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.testing_vision import build_prompt, draw_picture, reference_vision, write_tiny_vision_model
from dormouse_worker.model.testing_vision_families import Picture
from tests.worker.engine.engine_kit import finish
from tests.worker.executor.test_drafts import count

MAX_TOKENS = 8


class Seer:
    """A worker and an engine over it."""

    def __init__(self, directory, folder, *, num_blocks=80, host_blocks=0, make=CpuWorker, **settings):
        self.folder = folder
        fields = {
            "max_num_batched_tokens": 256,
            "swap_space_bytes": host_blocks << 20,
            "kv_cache_memory_bytes": 1 << 22,
        }
        self.settings = make_settings(directory, **{**fields, **settings}, image_dir=str(folder))
        self.counts = num_blocks, host_blocks
        self.worker = make(self.settings, 0)
        self.worker.init_device()
        self.worker.load_model()
        self.worker.determine_num_available_blocks()
        self.worker.initialize_cache(*self.counts)
        self.engine = self.make_engine()

    def make_engine(self):
        report = self.worker.get_memory_report()
        engine = build_engine(self.settings, report, self.counts, self.worker, clock=ManualClock())
        if self.settings.max_draft_tokens:
            draft_always(engine)
        return engine

    def add(self, name, parts, *, max_tokens=MAX_TOKENS, outputs=(), moments=(), predicted=(), **sampling):
        tokens, images = build_prompt(parts, self.folder, moments)
        message = make_add(name, tokens, max_tokens=max_tokens, **sampling)
        given = {"images": images, "output_token_ids": list(outputs), "prediction_token_ids": list(predicted)}
        message = msgspec.structs.replace(message, **given)
        assert self.engine.add(message) is None

    def ask(self, prompts, *, preempts=False, predicted=None, **sampling):
        """Ask all at once, and send one away after a pass if wanted; return {name: tokens}."""
        self.told = []
        for name, parts in prompts.items():
            self.add(name, parts, predicted=predicted[name] if predicted else (), **sampling)
        tokens = {name: [] for name in prompts}
        if preempts:
            for output in self.engine.step().outputs:
                tokens[output.request_id] += output.token_ids
            self.engine._scheduler._holdings.preempt_last()
        return finish(self.engine, tokens, self.told)

    @property
    def takes_drafts(self):
        """Whether drafts of the last answers were taken, and others were not."""
        scored, taken = count(self.told)
        return scored > taken > 0

    @property
    def counters(self):
        return self.engine._scheduler.counters

    @property
    def num_encoded(self):
        return self.engine._scheduler.images.num_encoded


@pytest.fixture(scope="session")
def seeing(tmp_path_factory):
    """Return a function family → the directory of its tiny model."""

    @functools.cache
    def write(family):
        return write_tiny_vision_model(tmp_path_factory.mktemp(family), family)

    return write


@pytest.fixture(scope="session")
def said(seeing, tmp_path_factory):
    """Return a function (family, parts) → what transformers says."""
    known = {}
    folder = tmp_path_factory.mktemp("reference")

    def say(family, parts):
        key = family, *(part.digest if isinstance(part, Picture) else tuple(part) for part in parts)
        if key not in known:
            known[key] = reference_vision(seeing(family), parts, folder, MAX_TOKENS)
        return known[key]

    return say


@pytest.fixture
def make_seer(seeing, tmp_path):
    """Return a function that makes a worker with an engine; it ends with the test."""
    made = []

    def make(family, **settings):
        made.append(Seer(seeing(family), tmp_path, **settings))
        return made[-1]

    yield make
    for seer in made:
        seer.worker.shutdown()


@pytest.fixture(scope="module")
def seen(seeing, tmp_path_factory):
    """Return a function family → a tower and an image of it."""
    folder, workers = tmp_path_factory.mktemp("seen"), {}

    def see(family):
        if family not in workers:
            workers[family] = CpuWorker(make_settings(seeing(family), image_dir=str(folder)), 0)
            workers[family].init_device()
            workers[family].load_model()
        _, (image,) = build_prompt([[1], draw_picture(family, 1), [2]], folder)
        encode = EncodeImage(image.digest, image.tensors, image.num_bytes, image.num_rows, image.grid)
        return workers[family]._model.tower, encode

    yield see
    for worker in workers.values():
        worker.shutdown()
