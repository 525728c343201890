"""The worker of a model that turns sound into text: one rank, a cache of places for windows."""

from __future__ import annotations

from dormouse_worker.common.errors import InsufficientMemory
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.speech.batch import SpeechBatch, SpeechOutput
from dormouse_worker.executor.worker.lone_worker import LoneWorker
from dormouse_worker.executor.worker.memory_errors import memory_errors
from dormouse_worker.executor.worker.on_gpu import OnGpu
from dormouse_worker.executor.worker.torch_worker import TorchWorker
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.sleep import SleepCycle
from dormouse_worker.model.speech.cache import Places, SpeechCache
from dormouse_worker.model.speech.golden import GoldenSpeech, record_golden, verify_golden
from dormouse_worker.model.speech.loader import LoadedSpeech, load_speech
from dormouse_worker.model.speech.places import report_places
from dormouse_worker.model.speech.runner import SpeechRunner


class SpeechWorker(TorchWorker, LoneWorker):
    """Implements `WorkerBase`; a subclass says which device it is."""

    makes = "a model that reads sound makes no text of text"

    def __init__(self, settings: EngineSettings, rank: int, host: Host | None = None) -> None:
        super().__init__(settings, rank, host)
        self._model: LoadedSpeech | None = None
        self._cache: SpeechCache | None = None
        self._golden: GoldenSpeech | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cache!r}, {self._slumber!r})"

    def load_model(self) -> None:
        """See `WorkerBase`."""
        self._model = load_speech(self.settings, self.device)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `WorkerBase`. A block is a place for a window; a pass encodes one and decodes as many as there may be."""
        model, limit = self.loaded(), self.meter.limit()
        runner = SpeechRunner(model, Places.allocate(model.sizes, 1, self.device.torch_device), self.settings.image_dir)
        measured = self.meter.measure(
            model.weights_bytes,
            warm_up=lambda: runner.profile(1),
            peak=lambda: runner.profile(self.settings.max_num_seqs),
        )
        self._report = report_places(self.settings, limit, measured, device=self.device.name, sizes=model.sizes)
        if not self._report.num_gpu_blocks:
            raise InsufficientMemory(
                f"a window of sound takes {self._report.block_bytes} bytes of cache, and {self._report.kv_cache_bytes} "
                f"are left beside weights of {self._report.weights_bytes} and activations of "
                f"{self._report.peak_activation_bytes}; raise the memory limit or lower maxNumSeqs"
            )
        return self._report.num_gpu_blocks, 0

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `WorkerBase`. Raises InsufficientMemory with nothing held."""
        assert num_cpu_blocks == 0, "as was reported"
        self._close_cache()
        with memory_errors("the places for windows cannot be allocated"):
            self._cache = SpeechCache(self.device, self.loaded().sizes, num_gpu_blocks)
        self.open_with(SleepCycle([self.loaded().weights, *self._cache.parts], self.device.memory.promised))

    def execute_speech(self, batch: SpeechBatch) -> SpeechOutput:
        """Encode, then compute a token of each row."""
        return self._runner().execute(batch)

    def loaded(self) -> LoadedSpeech:
        """See `LoneWorker`."""
        assert self._model is not None, "load_model comes first"
        return self._model

    def let_go(self) -> None:
        """See `LoneWorker`."""
        self._close_cache()
        if self._model is not None:
            self._model.weights.close()
        self._model = self._golden = None

    def record(self) -> None:
        """See `LoneWorker`."""
        self._golden = record_golden(self._runner())

    def repeat(self) -> None:
        """See `LoneWorker`."""
        assert self._golden is not None, "recorded before"
        verify_golden(self._runner(), self._golden)

    def _runner(self) -> SpeechRunner:
        assert self._cache is not None, "initialize_cache comes first"
        return SpeechRunner(self.loaded(), self._cache.places, self.settings.image_dir)

    def _close_cache(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._cache = None


class CpuSpeechWorker(SpeechWorker):
    """A `SpeechWorker` on the CPU."""

    def make_device(self) -> CpuDevice:
        """See `DeviceWorker`."""
        return CpuDevice(self.host)


class GpuSpeechWorker(OnGpu, SpeechWorker):
    """A `SpeechWorker` on a GPU."""
