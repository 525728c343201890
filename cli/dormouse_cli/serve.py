"""`dormouse serve`: hands over to a worker that runs alone. Knows which modules it needs and nothing of its flags."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence

from dormouse_cli.errors import CommandFailed

NEEDED = ("dormouse_worker", "torch", "transformers", "tokenizers", "msgspec", "jinja2", "uvloop")
EXTRA = "dormouse[worker]"
# What suits a try on one's own machine; a flag that the user gives comes later and wins.
DEFAULTS = ("--standalone", "--enable-reflection", "--host", "127.0.0.1", "--control-port", "0", "--metrics-port", "0")


def is_installed(module: str) -> bool:
    """Return whether the module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def worker_command(model: str, flags: Sequence[str], *, has: Callable[[str], bool] = is_installed) -> list[str]:
    """Return the command line of the worker. Raises CommandFailed naming the extra, or the misplaced flag."""
    if model.startswith("-"):
        raise CommandFailed(f"{model} stands where the model's directory belongs: dormouse serve MODEL {model} …")
    if missing := [module for module in NEEDED if not has(module)]:
        raise CommandFailed(f"serving needs the extra 'worker' (pip install '{EXTRA}'); missing: {', '.join(missing)}")
    # -P: nothing in the present directory may pass for one of our modules
    return [sys.executable, "-P", "-m", "dormouse_worker", *DEFAULTS, "--model", model, *flags]
