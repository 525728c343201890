"""An operator with a pool and its members over fakes, stepped by hand: one device a slot, which raises on overlap."""

from __future__ import annotations

from dataclasses import dataclass, field

from dormouse_kube.api import EVENTS, GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS, RESOURCE_CLAIMS
from dormouse_kube.testing import FakeKube
from dormouse_operator.model import Key, WorkerState
from dormouse_operator.observe.gateways import Told
from dormouse_operator.parse import parse_pool, slot_of
from dormouse_operator.testing.gateways import FakeGateways
from dormouse_operator.testing.kube import FakeNode, SteppedClock
from dormouse_operator.testing.pooled import PooledWorkers
from tests.operator_.conftest import FakeLeader
from tests.operator_.pools.one_operator import POOL, Operator

NEVER = {"level1AfterSeconds": None}
GATEWAY, OTHER = "a:1", "more"


@dataclass
class PoolRig:
    """The world that operators come and go in."""

    clock: SteppedClock = field(default_factory=SteppedClock)
    leader: FakeLeader = field(default_factory=FakeLeader)
    node_percent: int = 0  # of a node's allocatable memory that members' pods may take

    def __post_init__(self):
        self.kube = FakeKube(clock=self.clock)
        self.workers = PooledWorkers()
        self.node = FakeNode(self.kube, self.workers, self.clock)
        self.held = {}  # at gateways, by name of the member
        self.called_s = {}  # when a request of a member was last there
        self.began_s = self.clock().timestamp()
        self.loads_at_once = True
        self.ends_claims = False  # those that delete_pool leaves
        self.restart_operator()

    def restart_operator(self):
        """Lose everything that is only in memory."""
        self.operator = Operator(self.kube, self.workers, self.clock, self.leader, self.node_percent)
        self.tell()

    # what people want

    def pool(self, slots=1, **spec):
        """Create the pool, or change it."""
        device = {"claim": {"deviceClassName": "gpu.example.com"}}
        body = {"slots": slots, "gpusPerSlot": 1, "device": device, **spec}
        if self.kube.peek(GPU_POOLS, *POOL[:2]):
            self.kube.edit(GPU_POOLS, *POOL[:2], lambda obj: obj["spec"].update(body))
        else:
            self.kube.put(GPU_POOLS, {"metadata": {"namespace": POOL.namespace, "name": POOL.name}, "spec": body})

    def other_pool(self):
        """Create a second pool, of one slot, which nobody looks after."""
        device = {"claim": {"deviceClassName": "gpu.example.com"}}
        obj = {"metadata": {"namespace": POOL.namespace, "name": OTHER}, "spec": {"slots": 1, "device": device}}
        self.kube.put(GPU_POOLS, obj)

    def delete_pool(self):
        """Delete the pool; Kubernetes keeps its claims for as long as pods use them. Safe if there is none."""
        if not self.kube.peek(GPU_POOLS, *POOL[:2]):
            return
        self.kube.finish_deletion(GPU_POOLS, *POOL[:2])
        self.ends_claims = True
        for claim in self.kube.everything(RESOURCE_CLAIMS):
            if claim["metadata"]["name"].startswith(f"{POOL.name}-"):
                self.kube.edit(RESOURCE_CLAIMS, POOL.namespace, claim["metadata"]["name"], go_slowly)

    def end_claims(self):
        """Let claims that are deleted end once no pod has their devices; pods that have no node do not keep them."""
        for claim in self.kube.everything(RESOURCE_CLAIMS):
            if "deletionTimestamp" in claim["metadata"] and not claim.get("status", {}).get("reservedFor"):
                self.kube.finish_deletion(RESOURCE_CLAIMS, POOL.namespace, claim["metadata"]["name"])

    def member(self, name, pool="gpus", **spec):
        """Create a member, or change it."""
        body = {
            "model": {"uri": f"pvc://models/{name}"},
            "engine": {"device": "cuda"},
            "gpu": {"pool": {"name": pool}},
            "lifecycle": NEVER,
            **spec,
        }
        if self.kube.peek(INFERENCE_DEPLOYMENTS, POOL.namespace, name):
            self.kube.edit(INFERENCE_DEPLOYMENTS, POOL.namespace, name, lambda obj: obj["spec"].update(spec))
        else:
            self.kube.put(
                INFERENCE_DEPLOYMENTS, {"metadata": {"namespace": POOL.namespace, "name": name}, "spec": body}
            )
        self.held.setdefault(name, 0)
        self.tell()

    # what goes on

    def call(self, name, count=1):
        """Have requests come in at the gateway."""
        self.held[name] += count
        self.flow()

    def crash(self, name, index=0):
        """End a worker's container; the kubelet starts another one, and gateways hold what ran."""
        self.held[name] += self.worker(name, index).running_requests
        self.node.crash(self.pods_of(name)[index], exit_code=137)
        self.tell()

    def evict(self, pod):
        """Delete a pod as the control plane does whose claim has a tainted device."""
        target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager"}

        def go(obj):
            obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:30Z")
            obj["status"]["conditions"].append(target)

        self.kube.edit(PODS, POOL.namespace, pod, go)

    def finish(self, name):
        """Have all requests of a member end."""
        for worker in self.workers_of(name):
            worker.running_requests = 0
        self.tell()

    def flow(self):
        """Send what gateways hold to whoever serves, and tell the operator."""
        for name in self.held:
            found = self.serving(name)
            if found and self.held[name]:
                found[0].running_requests += self.held[name]
                found[0].request_counter += self.held[name]
                self.held[name] = 0
        self.tell()

    def tell(self):
        """Have the gateway tell what it knows of every member."""
        gateways = FakeGateways(lambda: self.clock().timestamp())
        for name, held in self.held.items():
            if held or self.num_running(name):
                self.called_s[name] = self.clock().timestamp()
        reports = {
            Key(POOL.namespace, name): gateways.report(
                held=held,
                in_flight=held + self.num_running(name),
                running=self.num_running(name),
                last_request_s=self.called_s.get(name),
                known_since_s=self.began_s,
            )
            for name, held in self.held.items()
        }
        self.operator.activities.take(GATEWAY, Told(reports, (), is_complete=True))

    async def step(self, seconds=0.0):
        """Let the world, members' passes and the pool's pass take their turns once."""
        self.node.tick()
        if self.loads_at_once:
            self.finish_loading()
        self.flow()
        await self.operator.look_at_pool()
        self.check()
        await self.operator.look_at_members()
        self.node.tick()
        if self.ends_claims:
            self.end_claims()
        self.check()
        self.clock.step(seconds)

    async def steps(self, number, seconds=0.0):
        for _ in range(number):
            await self.step(seconds)

    async def until(self, reached, *, limit=60, seconds=0.5):
        """Take steps until something is so."""
        for _ in range(limit):
            if reached():
                return
            await self.step(seconds)
        raise AssertionError(f"not reached: {self.slots()}, {self.states()}, {self.events}")

    async def serve_once(self, *names):
        """Have members serve a request each, one after the other: then they sleep with their weights in host memory."""
        for name in names:
            self.call(name)
            await self.until(lambda name=name: self.num_running(name))
            self.finish(name)

    def finish_loading(self):
        for worker in self.workers.workers.values():
            if worker.state is WorkerState.LOADING:
                worker.finish_loading()

    # what is seen

    def check(self):
        """At most so many have memory of a slot as may, whatever anybody believes."""
        for slot, device in self.node.devices.items():
            assert max(device.most_seen, len(device.holders)) <= device.most, slot

    def pods_of(self, name):
        return [
            pod["metadata"]["name"]
            for pod in self.kube.everything(PODS)
            if pod["metadata"]["labels"].get("inference.dormouse.dev/deployment") == name
        ]

    def slot_of(self, pod):
        return slot_of(self.kube.peek(PODS, POOL.namespace, pod))

    def workers_of(self, name):
        return [self.node.worker_of(pod) for pod in self.pods_of(name) if self.has_worker(pod)]

    def has_worker(self, pod):
        found = self.kube.peek(PODS, POOL.namespace, pod)
        return found.get("status", {}).get("podIP") in self.workers.workers

    def worker(self, name, index=0):
        return self.workers_of(name)[index]

    def num_running(self, name):
        return sum(worker.running_requests for worker in self.workers_of(name))

    def serving(self, name):
        """Return the workers that gateways send to."""
        ready = {"type": "Ready", "status": "True"}
        pods = [pod for pod in self.pods_of(name) if self.has_worker(pod)]
        return [
            self.node.worker_of(pod)
            for pod in pods
            if ready in self.kube.peek(PODS, POOL.namespace, pod).get("status", {}).get("conditions", [])
            and self.node.worker_of(pod).state is WorkerState.READY
        ]

    def serves(self, name):
        return bool(self.serving(name))

    def states(self):
        return {name: [str(worker.state) for worker in self.workers_of(name)] for name in self.held}

    def slots(self):
        raw = self.kube.peek(GPU_POOLS, *POOL[:2])
        return {slot.name: slot for slot in parse_pool(raw).slots} if raw else {}

    def slot(self, index=0):
        return self.slots()[f"{POOL.name}-{index}"]

    def status(self, name):
        return self.kube.peek(INFERENCE_DEPLOYMENTS, POOL.namespace, name).get("status", {})

    def condition(self, name, type_):
        found = next(item for item in self.status(name)["conditions"] if item["type"] == type_)
        return found["status"], found["reason"], found["message"]

    def pool_condition(self, type_):
        status = self.kube.peek(GPU_POOLS, *POOL[:2])["status"]
        found = next(item for item in status["conditions"] if item["type"] == type_)
        return found["status"], found["reason"], found["message"]

    @property
    def events(self):
        found = sorted(self.kube.everything(EVENTS), key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [
            f"{event['reason']}: {event['message']}" for event in found if event["involvedObject"]["kind"] == "GpuPool"
        ]


def go_slowly(claim):
    """Have the garbage collector delete a claim that Kubernetes keeps for as long as a pod uses it."""
    claim["metadata"].pop("ownerReferences", None)
    claim["metadata"] |= {
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "deletionTimestamp": "2026-01-01T00:01:00Z",
    }
