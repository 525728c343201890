"""Bring up the cluster that demo and tests use: localkube, or a check of the user's own (DORMOUSE_CONTEXT)."""

from __future__ import annotations

import os
import subprocess
import sys

from tools.kubectl import Cluster, CommandFailed
from tools.release import tool_command, tool_env


def main() -> None:
    """Start localkube, or say what is wrong with the user's context."""
    if "DORMOUSE_CONTEXT" not in os.environ:
        sys.exit(subprocess.run(tool_command("localkube", "up"), env=tool_env(), check=False).returncode)
    try:
        print(Cluster.current().kubectl("cluster-info"))
    except CommandFailed as error:
        sys.exit(f"DORMOUSE_CONTEXT={os.environ['DORMOUSE_CONTEXT']} is not reachable: {error}")


if __name__ == "__main__":
    main()
