"""The demo: from nothing to a chat model that answers as transformers does, sleeps, wakes, and is woken by a request.

Every step does its own set-up and takes no time when there is nothing to do. The cluster stays up afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import yaml
from rich.console import Console
from rich.table import Table

from dormouse_api.names import METADATA_HOLD_SECONDS, METADATA_START
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from tools import reference
from tools.bootstrap import ROOT
from tools.demo_model import FOLDER, demo_model_dir
from tools.demo_pools import show_pools
from tools.kubectl import Cluster, CommandFailed, localkube
from tools.progress import Progress, begun, follow, stream
from tools.release import Release, fill_model_claim, install, tool_command, tool_env

NAMESPACE = "dormouse-demo"
RELEASE = Release(name="dormouse", namespace="dormouse-system", watch_namespaces=(NAMESPACE,))
EXAMPLE = ROOT / "examples" / "demo"
NAME = "smollm2"  # of the deployment, and so of the model
WHAT = f"infd/{NAME}"
QUESTION = "Explain in two sentences why animals hibernate."
CONTINUED = ("The capital of France is", "Once upon a time, a dormouse", "def fibonacci(n):")
STARTED = "DORMOUSE_STARTED"  # seconds since 1970 when `make` began, so that its set-up is counted too
MAX_TOKENS = 48
RANKS_IN_A_POD = (1, 3)  # the model has nine heads, three of keys and values
RANK_MIB = 2048  # a rank is a process of its own, with a torch of its own
SERVES_AS_APPLIED = (  # what served before is Ready, too: of another demo, with other ranks
    "condition=CacheAllocated",
    'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=Complete',
    "condition=Ready",
)
SHORT_NIGHT = {"desiredState": "Auto", "level1AfterSeconds": 2, "level2AfterSeconds": 4, "minActiveSeconds": 0}
NIGHT_IS_OVER = {"desiredState": "Auto", "level1AfterSeconds": 600, "level2AfterSeconds": None, "minActiveSeconds": 60}
ONE_CORE = {"OMP_NUM_THREADS": "1"}  # building images keeps another core busy; threads that wait for it would spin


def main() -> None:
    """Run the demo, or remove it."""
    parser = argparse.ArgumentParser(description="Run the whole chain on this machine, and leave it up to be tried.")
    parser.add_argument("--down", action="store_true", help="remove the demo and the local Kubernetes")
    parser.add_argument("--tensor", type=int, choices=RANKS_IN_A_POD, default=1, help="ranks in each pod (default 1)")
    parser.add_argument(
        "--pipeline", type=int, choices=(1, 2, 3), default=1, help="pods that share the model's layers (default 1)"
    )
    args = parser.parse_args()
    if args.down:
        remove()
        return
    try:
        run_demo(Console(), example(tensor=args.tensor, pipeline=args.pipeline))
    except (CommandFailed, grpc.RpcError) as error:
        sys.exit(str(error))


def remove() -> None:
    """Take the local cluster down; on the user's own cluster remove only what the demo made."""
    cluster_is_ours = "DORMOUSE_CONTEXT" not in tool_env()
    if cluster_is_ours:
        print(localkube("down"))
        return
    cluster = Cluster.current()
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    cluster.helm("uninstall", RELEASE.name, "--namespace", RELEASE.namespace, "--ignore-not-found")


def example(*, tensor: int, pipeline: int) -> dict[str, Any]:
    """Return the demo's deployment; one of several ranks has a single replica, to spare a small machine."""
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLE / "inferencedeployment.yaml").read_text("utf-8"))
    if tensor * pipeline > 1:
        manifest["spec"] |= {"replicas": 1, "parallelism": {"tensor": tensor, "pipeline": pipeline}}
        manifest["spec"]["resources"]["limits"]["memory"] = f"{tensor * RANK_MIB}Mi"
    return manifest


def run_demo(console: Console, deployment: dict[str, Any]) -> None:
    """Do the steps in order and show what each brought about."""
    has_gpus = "DORMOUSE_CONTEXT" not in os.environ  # of the local cluster, and only there
    progress = Progress(total=10 + has_gpus, console=console, before_s=seconds_before(os.environ.get(STARTED, "")))
    with begun(tool_command("tools.demo_model"), {**tool_env(), **ONE_CORE}) as model_making:
        with progress.step("Start Kubernetes on this machine") as step:
            stream(tool_command("tools.testcluster", "up"), step, tool_env())
        with progress.step("Build the images and hand them to the cluster") as step:
            stream(tool_command("tools.images"), step, tool_env())
        with progress.step("Convert a chat model, SmolLM2-135M (cached; begun beside the images)") as step:
            follow(model_making, step)
    cluster = Cluster.current()
    model = demo_model_dir()
    with progress.step("Install the chart"):
        install(cluster, RELEASE)
    with progress.step("Copy the model to a volume"):
        fill_model_claim(
            cluster, namespace=NAMESPACE, claim_manifest=EXAMPLE / "models-claim.yaml", model=model, folder=FOLDER
        )
    with progress.step("Apply the InferenceDeployment: start, load, profile, agree, allocate"):
        cluster.apply(deployment, NAMESPACE)
        order(cluster, desiredState="Active")
        for condition in SERVES_AS_APPLIED:
            cluster.wait(WHAT, condition, NAMESPACE, timeout_s=300)
    show_agreement(console, cluster)
    with cluster.port_forward(RELEASE.gateway, 50051, RELEASE.namespace) as port:
        stub = rpc.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        with progress.step("Ask it something, through the gateway, over gRPC"):
            tokens = chat(console, stub)
        with progress.step("Compare with transformers, token by token"):
            agreeing = compare(console, stub, model, tokens)
        with progress.step("Put it to sleep, wake it, ask again"):
            sleep_and_wake(console, cluster)
            again = chat(console, stub)
        console.print(f"  the same answer after the sleep: {'yes' if again == tokens else 'NO'}")
        with progress.step("Let it fall asleep by itself, then ask it: the request waits and wakes it"):
            fall_asleep(console, cluster)
            woken = chat(console, stub)
            order(cluster, **NIGHT_IS_OVER)
        if has_gpus:
            with progress.step("Have four models take turns on two GPUs (stand-ins), and show the pool") as step:
                show_pools(console, cluster, stub, NAMESPACE, step)
    if not (agreeing and tokens == again == woken):
        sys.exit("the answers differ: this is a bug")
    console.print(f"\nDone in {spent(progress)}. The cluster stays up. Try next:")
    for command in next_commands(cluster):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def seconds_before(started: str, now_s: float | None = None) -> float:
    """Return how long `make` prepared all this before; 0 if nobody says when it began, or the clock was set since."""
    if not started.isascii() or not started.isdigit():
        return 0.0
    return max(0.0, (time.time() if now_s is None else now_s) - int(started))


def spent(progress: Progress) -> str:
    """Return the whole time in words, and how much of it went by before the first step."""
    before = f", {progress.before_s:.0f} s of them before the first step" if progress.before_s >= 1 else ""
    return f"{progress.elapsed_s:.0f} s{before}"


def question_messages() -> list[dict[str, str]]:
    """Return the conversation of the demo."""
    return [{"role": "user", "content": QUESTION}]


def greedy_request() -> pb.GenerateRequest:
    """Return the chat request of the demo: greedy, so that it can be compared."""
    messages = [pb.ChatMessage(role=m["role"], content=m["content"]) for m in question_messages()]
    sampling = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    return pb.GenerateRequest(model=NAME, chat=pb.Chat(messages=messages), sampling_params=sampling)


def chat(console: Console, stub: rpc.InferenceStub) -> list[int]:
    """Stream one answer to the console and return its tokens."""
    console.print(f"  [bold]{QUESTION}[/bold]")
    console.print("  ", end="")
    started = time.monotonic()
    first_s = 0.0
    tokens: list[int] = []
    call = stub.Generate(greedy_request(), timeout=120)
    for response in call:
        first_s = first_s or time.monotonic() - started
        tokens.extend(response.token_ids)
        console.print(response.text, end="", highlight=False, markup=False)
    total_s = time.monotonic() - started
    console.print(f"\n  {len(tokens)} tokens, the first after {first_s * 1000:.0f} ms, all in {total_s:.2f} s")
    told = {key: value for key, value in call.trailing_metadata() or () if isinstance(value, str)}
    if told.get(METADATA_START, "warm") != "warm":
        held_s = float(told[METADATA_HOLD_SECONDS])
        console.print(f"  it slept ({told[METADATA_START]}): the request was held for {held_s:.2f} s while it woke")
    return tokens


def compare(console: Console, stub: rpc.InferenceStub, model: Path, chat_tokens: list[int]) -> bool:
    """Compare the answer, and greedy continuations of some text, with transformers' own generate."""
    pairs = [
        (chat_tokens, reference.greedy_tokens(model, reference.chat_token_ids(model, question_messages()), MAX_TOKENS))
    ]
    for text in CONTINUED:
        prompt = list(stub.Tokenize(pb.TokenizeRequest(model=NAME, text=text), timeout=30).token_ids)
        pairs.append((continued(stub, prompt), reference.greedy_tokens(model, prompt, MAX_TOKENS)))
    equal = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False))
    total = sum(max(len(ours), len(theirs)) for ours, theirs in pairs)
    console.print(f"  {equal} of {total} tokens equal transformers' generate")
    return equal == total


def continued(stub: rpc.InferenceStub, prompt: list[int]) -> list[int]:
    """Return the greedy continuation of a prompt."""
    sampling = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    request = pb.GenerateRequest(model=NAME, token_ids=pb.TokenIds(ids=prompt), sampling_params=sampling)
    return [token for response in stub.Generate(request, timeout=120) for token in response.token_ids]


def show_agreement(console: Console, cluster: Cluster) -> None:
    """Print the resource as kubectl shows it, and each rank's report beside the agreed minimum."""
    console.print(cluster.kubectl("get", "infd", "-n", NAMESPACE), highlight=False, markup=False)
    cache = cluster.get("infd", NAME, NAMESPACE)["status"]["kvCache"]
    table = Table("rank", "pod", "reported blocks", "agreed blocks", "")
    for rank in cache["ranks"]:
        mark = "limits" if f"{rank['pod']}/{rank['rank']}" == cache["limitingRank"] else ""
        reported, agreed = f"{rank['numGpuBlocks']:,}", f"{cache['numGpuBlocks']:,}"
        table.add_row(str(rank["rank"]), rank["pod"], reported, agreed, mark)
    console.print(table)


def order(cluster: Cluster, **lifecycle: object) -> None:
    """Write fields of spec.lifecycle."""
    patch = json.dumps({"spec": {"lifecycle": lifecycle}})
    cluster.kubectl("patch", "infd", NAME, "-n", NAMESPACE, "--type=merge", "-p", patch)


def sleep_and_wake(console: Console, cluster: Cluster) -> None:
    """Order a sleep and a wake, and print what each says it did."""
    order(cluster, desiredState="Asleep", sleepLevel=2)
    cluster.wait(WHAT, "condition=Asleep", NAMESPACE)
    console.print(f"  {condition_message(cluster, 'Asleep')}", highlight=False, soft_wrap=True)
    order(cluster, desiredState="Active")
    cluster.wait(WHAT, "jsonpath={.status.phase}=Active", NAMESPACE)
    actuation = cluster.get("infd", NAME, NAMESPACE)["status"]["lastActuation"]
    console.print(f"  woken ({actuation['path']}) in {actuation['seconds']:.2f} s", highlight=False)


def fall_asleep(console: Console, cluster: Cluster) -> None:
    """Shorten the delays of the ladder, and wait until nobody has called for long enough."""
    order(cluster, **SHORT_NIGHT)
    cluster.wait(WHAT, "jsonpath={.status.lifecycle.rung}=Level2", NAMESPACE)
    cluster.wait(WHAT, "condition=Asleep", NAMESPACE)
    console.print(cluster.kubectl("get", "infd", "-n", NAMESPACE), highlight=False, markup=False)
    console.print(f"  {condition_message(cluster, 'Asleep')}", highlight=False, soft_wrap=True)


def condition_message(cluster: Cluster, condition: str) -> str:
    """Return the message of a condition of the demo's deployment."""
    conditions = cluster.get("infd", NAME, NAMESPACE)["status"]["conditions"]
    return str(next(c["message"] for c in conditions if c["type"] == condition))


def next_commands(cluster: Cluster) -> list[str]:
    """Return three commands that a newcomer may want to run."""
    kubectl = " ".join([f"KUBECONFIG={cluster.kubeconfig}", *cluster.kubectl_command()]).strip()
    chat_command = f".venv/bin/python -m dormouse_cli chat --address 127.0.0.1:50051 --model {NAME}"
    return [
        f"{kubectl} explain infd.spec.engine",
        f"{kubectl} scale {WHAT} -n {NAMESPACE} --replicas=1",
        f"{kubectl} port-forward -n {RELEASE.namespace} {RELEASE.gateway} 50051  # then: {chat_command}",
        "make demo-down",
    ]


if __name__ == "__main__":
    main()
