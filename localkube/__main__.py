"""The command line of localkube."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from localkube import build, lock, pki, registry, report
from localkube.cluster import Cluster
from localkube.errors import HostError, LocalkubeError
from localkube.progress import Progress
from localkube.spec import Paths
from localkube.start import pid_file
from tools.bootstrap import cache_root

READER_LEFT = 141  # as a shell reports a program that SIGPIPE ended
EPILOG = """
typical use:
  python -m localkube up                             start it (the first time builds Kubernetes: 5-9 minutes)
  export KUBECONFIG=$(python -m localkube kubeconfig)
  export PATH=$(python -m localkube bin):$PATH       kubectl, helm, grpcurl
  kubectl get nodes
  python -m localkube load localhost/app:1           make a buildah image usable by pods under the same name
  python -m localkube gpus --number 2                offer GPUs that are not there, until Ctrl-C
  python -m localkube down                           end it and remove its traces from the machine

All state is under DORMOUSE_CACHE/localkube. It must run as root, and there is one cluster per machine: a second clone
adopts the running one if its localkube is the same, and replaces it otherwise. Pods can pull images only from the
loopback registry at 127.0.0.1:5000, which answers for every registry's name: ghcr.io/dormouse/worker:1 is served as
dormouse/worker:1.
"""


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("localkube", description=__doc__, epilog=EPILOG, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="bring the cluster up, or mend it; a moment if it is up and healthy")
    up.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="2: a second node, until `down`; default 1")
    down = commands.add_parser("down", help="end the cluster; images and binaries are kept")
    down.add_argument("--purge", action="store_true", help="remove images and binaries too")
    commands.add_parser("status", help="show components, versions and paths; exit code 0 only when healthy")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    commands.add_parser("bin", help="print the folder of kubectl, helm and grpcurl")
    load = commands.add_parser("load", help="copy a buildah image to the node; only new layers are copied")
    load.add_argument("image", help="name with tag, as pods will use it")
    commands.add_parser("build", help="build the binaries, if these sources were never built here")
    commands.add_parser("prune", help="remove old builds, outdated image tags and what nothing refers to")
    gpus = commands.add_parser("gpus", help="offer stand-in GPUs by dynamic resource allocation, until Ctrl-C")
    gpus.add_argument("--number", type=int, choices=range(1, 129), default=2, metavar="N", help="1 to 128; default 2")
    gpus.add_argument("--memory", type=_memory, default="512Mi", help="what each is said to have; default 512Mi")
    gpus.add_argument("--device-plugin", action="store_true", help="as an extended resource instead of by claims")
    commands.add_parser("provisioner", help="serve volumes (a component; started by `up`)")
    commands.add_parser("policies", help="enforce NetworkPolicies (a component; started by `up`)")
    return parser


def _memory(text: str) -> str:
    from localkube.gpus.objects import bytes_of

    try:
        bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _up(paths: Paths, arguments: argparse.Namespace) -> int:
    Cluster(paths).up(num_nodes=arguments.nodes)
    return 0


def _down(paths: Paths, arguments: argparse.Namespace) -> int:
    Cluster(paths).down(purge=arguments.purge)
    return 0


def _status(paths: Paths, _: argparse.Namespace) -> int:
    cluster = Cluster(paths)
    is_healthy = cluster.is_healthy()
    print(report.render(report.gather(cluster, is_healthy=is_healthy)))
    return 0 if is_healthy else 1


def _kubeconfig(paths: Paths, _: argparse.Namespace) -> int:
    print(paths.kubeconfig)
    return 0


def _bin(paths: Paths, _: argparse.Namespace) -> int:
    print(build.bin_dir(paths))
    return 0


def _load(paths: Paths, arguments: argparse.Namespace) -> int:
    progress = Progress()
    with lock.machine_lock("localkube load", progress.say):
        registry.load(paths, arguments.image, progress)
    return 0


def _build(paths: Paths, _: argparse.Namespace) -> int:
    progress = Progress()
    with lock.machine_lock("localkube build", progress.say):
        progress.say(f"binaries: {build.build(paths, progress)}")
    return 0


def _prune(paths: Paths, _: argparse.Namespace) -> int:
    progress = Progress()
    with lock.machine_lock("localkube prune", progress.say):
        build.prune_builds(paths, progress)
        build.prune_caches(paths)
        registry.prune(paths, build.bin_dir(paths), progress)
    return 0


def _gpus(paths: Paths, arguments: argparse.Namespace) -> int:
    from localkube.gpus.device_plugin import PluginOffer
    from localkube.gpus.objects import Gpus
    from localkube.gpus.offer import Offer, Stop, alone
    from localkube.kubeapi import KubeApi

    if not (paths.pki / pki.COMPLETE).exists():
        raise HostError("there is no cluster to offer GPUs to; start it with `python -m localkube up`")
    stop = Stop()
    stop.listen()
    with alone(pid_file(paths, "gpus")):
        gpus, kubelet = Gpus(arguments.number, arguments.memory), paths.var / "kubelet"
        if arguments.device_plugin:
            PluginOffer(kubelet, paths.stand_ins, gpus, _log).run(stop)
        else:
            Offer(KubeApi(paths.pki, "admin"), kubelet, paths.stand_ins, gpus, _log).run(stop)
    return 0


def _provisioner(paths: Paths, _: argparse.Namespace) -> int:
    from localkube import provisioner
    from localkube.kubeapi import KubeApi

    provisioner.run(KubeApi(paths.pki, "provisioner"), paths.volumes, ready=paths.provisioner_ready, log=_log)
    return 0


def _policies(paths: Paths, _: argparse.Namespace) -> int:
    from localkube import guards
    from localkube.kubeapi import KubeApi

    guards.run(KubeApi(paths.pki, "policies"), ready=paths.policies_ready, log=_log)
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMANDS: dict[str, Callable[[Paths, argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "kubeconfig": _kubeconfig,
    "bin": _bin,
    "load": _load,
    "build": _build,
    "prune": _prune,
    "gpus": _gpus,
    "provisioner": _provisioner,
    "policies": _policies,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Whoever reads the output may stop reading: that is no failure to tell."""
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # what is still buffered meets the closed pipe here, not at the interpreter's end
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's end flushes once more
        return READER_LEFT


def _run(argv: Sequence[str] | None) -> int:
    """Run one command; return its exit code. A failure is one message for a person, not a traceback."""
    arguments = _parser().parse_args(argv)
    paths = Paths(Path(cache_root()).resolve() / "localkube")
    try:
        return COMMANDS[arguments.command](paths, arguments)
    except LocalkubeError as error:
        print(f"[localkube] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[localkube] interrupted; `up` continues from here, `down` removes what there is", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
