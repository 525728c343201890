"""Measure the operator against a real API server, with thousands of InferenceDeployments: `python -m bench.fleet`.

    burst     applied at once until all are Ready; API writes and operator CPU for each
    rest      memory, writes and CPU of the operator while nothing happens
    change    spec change to last child updated, one at a time
    ready     pod Ready to deployment Ready, one at a time
    start     the operator's start over all of them
    failover  the leader is killed, and ended: until the other acts

etcd, API server and scheduler are those of localkube, the nodes are KWOK's, and one process answers for the workers of
all pods over the real protocol. It all runs in network and process namespaces of its own (so it must run as root), and
a local Kubernetes beside it is not touched. A whole run writes bench/results/operator.json and operator.svg; a
shortened one writes nothing unless --out says where. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from bench.fleet import kwok_build, sandbox
from bench.fleet.inside import ROOT
from bench.fleet.options import parse_options
from bench.options import end_children_on_sigterm
from localkube import build
from localkube.errors import LocalkubeError
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root, machine_lock


def main() -> None:
    """Build what is missing, then run the benchmark in its sandbox; end with its exit code."""
    parse_options(__doc__)
    end_children_on_sigterm()
    try:
        sandbox.check()
        sys.exit(_run(sys.argv[1:]))
    except (sandbox.SandboxError, LocalkubeError) as error:
        sys.exit(str(error))


def _run(arguments: list[str]) -> int:
    """Run it, one at a time on a machine; its logs stay until the next run, its state does not."""
    paths, progress = Paths(ROOT), Progress()
    ROOT.mkdir(parents=True, exist_ok=True)
    with machine_lock("bench-operator"):
        build.build(Paths(cache_root() / "localkube"), progress)
        kwok_build.build(ROOT, progress.say)
        for folder in (paths.state, paths.logs):
            shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "bench.fleet.inside", *arguments]
        try:
            env = {**os.environ, **sandbox.host_note()}
            return subprocess.run(sandbox.enter_command(command), env=env, check=False).returncode
        finally:
            shutil.rmtree(paths.state, ignore_errors=True)
            paths.kubeconfig.unlink(missing_ok=True)  # of a cluster that is no more


if __name__ == "__main__":
    main()
