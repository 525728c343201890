"""The operator's command: reads settings, sets up logging, runs the loop."""

from __future__ import annotations

import os
import sys

import uvloop

from dormouse_kube.errors import KubeError
from dormouse_operator import logs
from dormouse_operator.process import run
from dormouse_operator.seeds import read_seeds
from dormouse_operator.settings import SettingsError, parse_settings


def main() -> None:
    """Run the operator; a bad setting ends it at once with the variable's name."""
    try:
        settings = parse_settings(os.environ)
        seeds = read_seeds(settings.tokens_dir)
    except SettingsError as error:
        sys.exit(str(error))
    logs.set_up(settings.log_level, settings.log_format)
    try:
        sys.exit(uvloop.run(run(settings, seeds)))
    except (KubeError, OSError) as error:  # no API server to log in to, or the port is taken
        sys.exit(str(error))


if __name__ == "__main__":
    main()
