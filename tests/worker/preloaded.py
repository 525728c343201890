"""Imported once, by the process that `Forked` ones are forked from: what a rank imports, as a rank imports it."""

from dormouse_worker.model.slim_imports import import_slim

import_slim()

import dormouse_worker.executor.testing_rank  # noqa: E402, F401  # after it, or all of transformers would come
