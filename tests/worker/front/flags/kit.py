"""A command line with a model."""

from __future__ import annotations

from dormouse_worker.front.flags.settings import parse_settings


def parse(*argv, **environ):
    return parse_settings(["--model", "/models/tiny", *argv], environ)
