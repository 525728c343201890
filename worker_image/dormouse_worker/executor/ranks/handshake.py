"""What a rank says of itself, and what its leader expects to hear: made by the same function on both sides."""

from __future__ import annotations

from collections.abc import Mapping

from dormouse_api import __version__
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.group import identity_of
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.ranks.messages import Hello
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_digest import digest_model
from dormouse_worker.files.model_files import check_model_files


def make_hello(rank: int, settings: EngineSettings, environ: Mapping[str, str]) -> Hello:
    """Return the greeting of a rank with these settings. A model that cannot be read stands there as its error."""
    group_id, pod = identity_of(environ)
    leaders = Layout(settings.tensor_parallel_size, settings.pipeline_parallel_size)  # one digest for all ranks
    try:
        model_digest = digest_model(check_model_files(as_directory(settings).model_path, settings.load_format, leaders))
    except (WorkerError, OSError) as error:
        model_digest = f"{type(error).__name__}: {error}"
    return Hello(rank, group_id, settings.digest(), __version__, model_digest, pod)
