"""Hatch's hook that compiles the worker's kernels into a wheel. Off by default: the CLI's wheel fits every platform.

`HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip wheel --no-deps .` makes a wheel for this platform, and needs g++.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAM = "worker_image/dormouse_worker/native/build.py"


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]  # of a configuration that it has none of
    """Adds the library where `native.library` looks first."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform. Raises CalledProcessError with the reason on standard error."""
        del version
        command = [sys.executable, str(Path(self.root, PROGRAM))]
        library = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        build_data["force_include"][library] = f"dormouse_worker/native/{Path(library).name}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
