"""The demo's last part: four models take turns on two GPUs that are not there, and `dormouse pool` shows who has them.

Only on the local cluster, whose driver offers such GPUs. Nothing of it stays.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from localkube.spec import Paths
from tools.bootstrap import ROOT, cache_root
from tools.kubectl import Cluster, CommandFailed, run
from tools.progress import Step
from tools.release import tool_command, tool_env

EXAMPLE = ROOT / "examples" / "pool"
POOL = "shared"
MEMBERS = ("alder", "birch", "cedar", "dogwood")
CAN_BE_WOKEN = 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep'
FOLDER_OF_ROOT = "/var/cache/dormouse/localkube/state/stand-ins"  # as the example names it
PROMPT = "The capital of France is"
ROUNDS = 2  # in the first all engines start; in the second most models wake
ANSWER_S = 240  # a front that hangs is replaced, and the request waits for it
GONE_S = 120


def show_pools(console: Console, cluster: Cluster, stub: rpc.InferenceStub, namespace: str, step: Step) -> None:
    """Apply the example, ask each member, and show the pool before and after."""
    with stand_in_gpus(), applied(cluster, namespace):
        for name in MEMBERS:
            step.tell(f"waiting for {name}")
            cluster.wait(f"infd/{name}", CAN_BE_WOKEN, namespace, timeout_s=300)
        show(console, cluster, namespace)
        for name in MEMBERS * ROUNDS:
            step.tell(f"asking {name}")
            console.print(f"  {name}: {ask(stub, f'{namespace}/{name}')}", highlight=False, markup=False)
        show(console, cluster, namespace)


def ask(stub: rpc.InferenceStub, model: str) -> str:
    """Return what a model answers, and after how long."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=6)
    request = pb.GenerateRequest(model=model, text=PROMPT, sampling_params=sampling)
    started = time.monotonic()
    text = "".join(response.text for response in stub.Generate(request, timeout=ANSWER_S))
    took_s, line = time.monotonic() - started, text.partition("\n")[0]
    return f"{PROMPT}{line} ({took_s:.2f} s)"


@contextmanager
def stand_in_gpus() -> Iterator[None]:
    """Have the local cluster's driver offer two GPUs while the block runs; it ends once nobody has them."""
    command = tool_command("localkube", "gpus", "--number", "2", "--memory", "1Gi")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=tool_env()) as driver:
        assert driver.stderr is not None
        said = driver.stderr.readline()
        if " offers " not in said:
            raise CommandFailed(f"{' '.join(command)}: {said}{driver.stderr.read()}")
        try:
            yield
        finally:
            driver.send_signal(signal.SIGINT)
            driver.communicate()


@contextmanager
def applied(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Have volume, pool and members while the block runs. Pods end before their claims, and these before the driver."""
    try:
        for text in manifests(namespace, Paths(cache_root().resolve() / "localkube").stand_ins):
            cluster.apply(text, namespace)
        yield
    finally:
        remove(cluster, namespace)


def manifests(namespace: str, stand_ins: Path) -> list[str]:
    """Return the example's files, for this namespace and this folder of stand-ins."""
    volume, pool, members = (
        (EXAMPLE / name).read_text("utf-8") for name in ("stand-ins.yaml", "gpupool.yaml", "members.yaml")
    )
    here = volume.replace(FOLDER_OF_ROOT, str(stand_ins)).replace("namespace: dormouse-demo", f"namespace: {namespace}")
    return [here, pool, members]


def remove(cluster: Cluster, namespace: str) -> None:
    """Delete what `applied` made, and wait until it is gone."""
    timeout = ("--ignore-not-found", f"--timeout={GONE_S}s")
    pods = ("pods", "-l", f"inference.dormouse.dev/pool={POOL}")
    cluster.kubectl("delete", "infd", *MEMBERS, "-n", namespace, *timeout)
    cluster.kubectl("wait", *pods, "-n", namespace, "--for=delete", f"--timeout={GONE_S}s")
    cluster.kubectl("delete", "gpool", POOL, "-n", namespace, *timeout)
    cluster.kubectl("delete", "pvc", "stand-ins", "-n", namespace, *timeout)
    cluster.kubectl("delete", "pv", "stand-ins", *timeout)


def show(console: Console, cluster: Cluster, namespace: str) -> None:
    """Print the pool as the command line shows it."""
    command = tool_command("dormouse_cli", "pool", POOL, "-n", namespace)
    told = run(command, env={**tool_env(), **cluster.env})
    console.print(told, highlight=False, markup=False, soft_wrap=True)
