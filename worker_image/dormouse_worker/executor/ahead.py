"""What an engine process that waits for its use does meanwhile: imports. It opens no device and reads no weights."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from dormouse_worker.common.host import Host, lasting_objects
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE
from dormouse_worker.executor.environment import library_variables
from dormouse_worker.executor.worker.runtime import choose_worker
from dormouse_worker.executor.worker.wrapper import BARE_CLASS, import_worker
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.files.task_files import task_of
from dormouse_worker.model.device.check import find_quantizer

logger = logging.getLogger(__name__)


def import_ahead(settings: EngineSettings, environ: MutableMapping[str, str], host: Host) -> None:
    """Import what a rank with these settings needs to load its model. Raises nothing.

    Whatever is wrong here is wrong again when the engine starts, and is told then.
    """
    try:
        settings = as_directory(settings)
        files = check_model_files(settings.model_path, settings.load_format)
        environ.update(library_variables(host.num_threads(settings.threads)))
        worker_class = choose_worker(settings, environ, files)
        import_worker(settings, worker_class, is_quantized=bool(find_quantizer(files.config)))
        if worker_class != BARE_CLASS and task_of(settings, files.config) == GENERATE:
            _import_architecture(settings)
    except Exception as error:  # noqa: BLE001  # see above
        logger.info("not all could be imported ahead: %s", error)


def _import_architecture(settings: EngineSettings) -> None:
    """Import the modules of the model's class, which transformers does when it makes the first one."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    from dormouse_worker.model.slim_imports import without_compiler

    path = settings.model_path
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)  # nosec B615
    with lasting_objects(), without_compiler():
        MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
