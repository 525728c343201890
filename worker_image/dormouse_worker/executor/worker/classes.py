"""From the names in the settings to the class of a rank's worker: one's own, and one's own methods mixed in.

Importing runs whatever the named modules do, so this comes after the rank's environment stands.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.executor.worker.base import WorkerBase


def resolve_worker_class(worker_cls: str, extension_cls: str = "") -> type[WorkerBase]:
    """Return the class of this qualified name, with the extension's methods if one is named.

    Raises InvalidSettings naming the setting, the class and what is wrong with it.
    """
    worker = _require_worker(worker_cls)
    return _extend(worker, extension_cls) if extension_cls else worker


def _require_worker(worker_cls: str) -> type[WorkerBase]:
    found = _import_class("worker_cls", worker_cls)
    if not issubclass(found, WorkerBase):
        raise InvalidSettings(f"worker_cls is {worker_cls!r}, which is no WorkerBase; derive it from one")
    if missing := found.__abstractmethods__:
        raise InvalidSettings(f"worker_cls is {worker_cls!r}, which leaves out {_listed(missing)}")
    return found


def _extend(worker: type[WorkerBase], extension_cls: str) -> type[WorkerBase]:
    """Return a class of its own that is both: neither of the two is changed, and other workers are not touched."""
    extension = _import_class("worker_extension_cls", extension_cls)
    if issubclass(worker, extension):
        return worker
    if "__init__" in vars(extension):
        raise InvalidSettings(
            f"worker_extension_cls is {extension_cls!r}, whose __init__ would never run; the worker is built by its own"
        )
    if shared := _own_names(extension) & _own_names(worker):
        raise InvalidSettings(
            f"worker_extension_cls is {extension_cls!r} and has {_listed(shared)}, "
            f"which {worker.__qualname__} has too; choose another name"
        )
    try:
        return type(worker.__name__, (worker, extension), {"__module__": worker.__module__})
    except TypeError as error:  # metaclasses or memory layouts that do not go together
        raise InvalidSettings(
            f"worker_extension_cls is {extension_cls!r}, which cannot be mixed into {worker.__qualname__}: {error}"
        ) from error


def _own_names(cls: type) -> set[str]:
    """Return all names but Python's own. Annotated ones count: each instance gets them when it is built.

    A name with one underscore counts as well: the worker's would silently take the place of the extension's.
    """
    bases = [base for base in inspect.getmro(cls) if base is not object]
    names = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in names if not name.startswith(("__", "_abc_"))}


def _import_class(setting: str, qualified_name: str) -> type:
    module_name, _, class_name = qualified_name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a module raises while it is imported
        raise InvalidSettings(
            f"{setting} is {qualified_name!r}, but importing {module_name} fails: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InvalidSettings(f"{setting} is {qualified_name!r}, but {module_name} has no {class_name}")
    if not isinstance(found, type):
        raise InvalidSettings(f"{setting} is {qualified_name!r}, which is no class but a {type(found).__name__}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
