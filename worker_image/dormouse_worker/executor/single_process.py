"""The executor for one rank in this very process."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import MadeTokenizer, MemoryReport, ModelInfo, RankStatus
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.executor import SleepReport, WakeReport
from dormouse_worker.engine.grammars import Preparation
from dormouse_worker.engine.keeping import StoredCache
from dormouse_worker.engine.pooling.batch import PoolingBatch
from dormouse_worker.engine.pooling.executor import PassUnderWay
from dormouse_worker.engine.speech.batch import SpeechBatch, SpeechOutput
from dormouse_worker.engine.validation import check_settings
from dormouse_worker.executor.environment import library_variables
from dormouse_worker.executor.worker.runtime import choose_worker
from dormouse_worker.executor.worker.wrapper import WorkerWrapper
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.private_folder import default_folder
from dormouse_worker.model.device.check import find_quantizer

logger = logging.getLogger(__name__)


class SingleProcessExecutor:
    """Implements `engine.executor.Executor`, and `StagedExecutor`, with one wrapped worker."""

    def __init__(self, settings: EngineSettings, environ: MutableMapping[str, str], host: Host) -> None:
        """Prepare names only; torch, where it is needed, is imported by `init_device`."""
        self._settings = settings
        self._environ = environ
        self._host = host
        self._wrapper: WorkerWrapper | None = None

    def init_device(self) -> None:
        """See `Executor`. Looks at the model's files first: what is wrong there needs no torch to be told."""
        check_settings(self._settings)
        self._settings = as_directory(self._settings)
        files = check_model_files(self._settings.model_path, self._settings.load_format)
        worker_class = choose_worker(self._settings, self._environ, files)
        wrapper = WorkerWrapper(self._settings, rank=0, worker_class=worker_class)
        wrapper.update_environment(self._environ, self._variables())
        wrapper.init_worker(is_quantized=bool(find_quantizer(files.config)))
        wrapper.execute_method("init_device")
        self._wrapper = wrapper

    def load_model(self) -> None:
        """See `Executor`."""
        self._built().execute_method("load_model")

    def get_model_info(self) -> ModelInfo:
        """See `Executor`."""
        info: ModelInfo = self._built().execute_method("get_model_info")
        return info

    def convert_tokenizer(self) -> MadeTokenizer:
        """See `Executor`. What cannot be converted is logged: token ids can be served all the same."""
        return converted_tokenizer(self._settings)

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """See `Executor`."""
        blocks: tuple[int, int] = self._built().execute_method("determine_num_available_blocks")
        return blocks

    def get_memory_report(self) -> MemoryReport | None:
        """See `Executor`. None, too, while there is no worker."""
        if self._wrapper is None:
            return None
        report: MemoryReport | None = self._wrapper.execute_method("get_memory_report")
        return report

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """See `Executor`."""
        self._built().execute_method("initialize_cache", num_gpu_blocks, num_cpu_blocks)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `Executor`."""
        windows: tuple[int | None, ...] = self._built().execute_method("layer_windows")
        return windows

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `Executor`."""
        preparation: Preparation = self._built().execute_method("prepare_grammar", grammar)
        return preparation

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `Executor`."""
        output: ModelOutput = self._built().execute_method("execute_model", batch)
        return output

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `StagedExecutor`."""
        wait_for_output: Callable[[], ModelOutput] = self._built().execute_method("submit", batch)
        return wait_for_output

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`."""
        runs_ahead: bool = self._built().execute_method("runs_ahead")
        return runs_ahead

    def begin_pooling(self, batch: PoolingBatch) -> PassUnderWay:
        """See `PoolingExecutor`."""
        under_way: PassUnderWay = self._built().execute_method("begin_pooling", batch)
        return under_way

    def execute_speech(self, batch: SpeechBatch) -> SpeechOutput:
        """See `SpeechExecutor`."""
        output: SpeechOutput = self._built().execute_method("execute_speech", batch)
        return output

    def start_profile(self, directory: str) -> None:
        """See `Executor`."""
        self._built().execute_method("start_profile", directory)

    def stop_profile(self) -> str:
        """See `Executor`."""
        path: str = self._built().execute_method("stop_profile")
        return path

    def sleep(self, level: int, tags: Collection[str], kept_blocks: Sequence[int] = ()) -> SleepReport:
        """See `Executor`."""
        self._built().execute_method("end_profile")
        report: SleepReport = self._built().execute_method("sleep", level, tags, kept_blocks)
        return report

    def forget_images(self) -> None:
        """See `SeeingExecutor`."""
        self._built().execute_method("forget_images")

    def prepare_wake_up(self, tags: Collection[str]) -> int:
        """See `Executor`."""
        missing_bytes: int = self._built().execute_method("prepare_wake_up", tags)
        return missing_bytes

    def wake_up(self, tags: Collection[str]) -> WakeReport:
        """See `Executor`."""
        report: WakeReport = self._built().execute_method("wake_up", tags)
        return report

    def add_lora(self, path: str, digest: str = "", seconds: float = math.inf) -> AdapterInfo | None:
        """See `Executor`."""
        info: AdapterInfo | None = self._built().execute_method("add_lora", path, digest, seconds)
        return info

    def remove_lora(self, digest: str) -> None:
        """See `Executor`."""
        self._built().execute_method("remove_lora", digest)

    def list_loras(self) -> AdapterList:
        """See `Executor`."""
        adapters: AdapterList = self._built().execute_method("list_loras")
        return adapters

    def stored_cache(self) -> StoredCache:
        """See `StoringExecutor`."""
        cache: StoredCache = self._built().execute_method("stored_cache")
        return cache

    def save_sharded_state(self, directory: str) -> None:
        """See `Executor`."""
        self._built().execute_method("save_sharded_state", directory)

    def get_rank_statuses(self) -> tuple[RankStatus, ...]:
        """See `Executor`."""
        return ()

    def check_ranks(self) -> None:
        """See `Executor`."""

    def verify(self) -> None:
        """See `Executor`."""
        self._built().execute_method("verify")

    def check_health(self) -> None:
        """See `Executor`. Without a worker there is nothing that could be ill."""
        if self._wrapper is not None:
            self._wrapper.execute_method("check_health")

    def shutdown(self) -> None:
        """See `Executor`. Safe before `init_device`, and a second time."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            wrapper.execute_method("end_profile")
            wrapper.execute_method("shutdown")

    def abandon(self) -> None:
        """See `Executor`; whatever there is ends with this process."""

    def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every rank's worker by name, also one of its extension; return the answers by rank.

        Raises InvalidArgument if there is no such method, and whatever it raises.
        """
        return [self._built().execute_method(method, *args, **kwargs)]

    def _built(self) -> WorkerWrapper:
        assert self._wrapper is not None, "init_device comes first"
        return self._wrapper

    def _variables(self) -> dict[str, str]:
        return library_variables(self._host.num_threads(self._settings.threads))


def converted_tokenizer(settings: EngineSettings) -> MadeTokenizer:
    """See `Executor.convert_tokenizer`."""
    model_path = as_directory(settings).model_path
    if (model_path / "tokenizer.json").is_file():
        return MadeTokenizer()
    from dormouse_worker.model.tokenizer import convert

    try:
        made = convert(model_path, Path(settings.tokenizer_cache or default_folder()))
    except WorkerError as error:
        problem = str(error)
    except OSError as error:
        problem = f"its tokenizer cannot be converted: {error}; give --tokenizer-cache a directory with room to write"
    else:
        return MadeTokenizer("" if made is None else str(made))
    logger.warning("no text without a tokenizer: %s", problem)
    return MadeTokenizer(problem=problem)
