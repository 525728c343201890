"""Members, their workers and an operator on slots, in virtual time: any step may fail, be repeated, or not be seen.

A worker keeps the contract of grants and nothing else: it takes memory under a grant alone, an older epoch changes
nothing, and a restart has none. The operator keeps nothing but what was written: `slots`. It is the test's own model
of what the operator will talk to, so that decisions are judged by memory and not by what was decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dormouse_operator.decide.pools import commands
from dormouse_operator.decide.pools.arbiter import decide
from dormouse_operator.decide.pools.switch import next_step
from dormouse_operator.model.pools import Demand, Place, PoolPolicy, Slot, SlotPhase, Tenant, TenantState
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import key, replica

STANDBY, ASLEEP, RISING = TenantState.STANDBY, TenantState.ASLEEP, TenantState.RISING
SERVING, DRAINING, FAILED = TenantState.SERVING, TenantState.DRAINING, TenantState.FAILED
POLICY = PoolPolicy(
    min_active_s=10.0,
    drain_s=4.0,
    sleep_s=6.0,
    standby_s=6.0,
    pod_gone_s=10.0,
    silent_s=5.0,
    wake_s=30.0,
    max_backoff_s=20.0,
)
RISE_S, START_S, RESTART_S = 1.0, 4.0, 3.0


@dataclass
class Worker:
    """One replica's pod and what runs in it."""

    replica: object
    instance: int = 0
    state: TenantState = STANDBY
    gate_open: bool = False
    running: int = 0
    counter: int = 0
    grant_epoch: int = 0
    known_epoch: int = 0  # the latest of the slot that it has heard
    refused_epoch: int = 0
    wakes_at: object = None
    back_at: object = None  # when another container, or pod, is there; None = it runs
    dead_since: object = None  # its front answers nobody
    deleting_since: object = None
    faults: tuple = ()  # of what it is told next: "refuse", "hang", "fail"

    @property
    def holds_memory(self):
        return self.state in {RISING, SERVING, DRAINING, FAILED} and self.back_at is None


class World:
    """A pool, its members and everything that can go wrong with them."""

    def __init__(self, num_slots=2, members=4, places=2, policy=POLICY):
        self.policy, self.now = policy, NOW
        self.slots = {str(number): Slot(name=str(number), since=NOW) for number in range(num_slots)}
        self.workers = {}
        for number in range(members):
            for index in range(min(places, num_slots)):
                self.workers[replica(f"m{number}", index)] = str((number + index) % num_slots)
        self.slot_of, self.workers = self.workers, {found: Worker(found) for found in self.workers}
        self.calls = {key(f"m{number}"): 0 for number in range(members)}  # held at gateways
        self.waiting_since = dict.fromkeys(self.calls)
        self.heard, self.hidden, self.sent = True, set(), []
        self.intruders = set()  # took memory without a grant, and were given none since
        self.served_s = dict.fromkeys(self.calls, 0.0)
        self.longest_wait_s = dict.fromkeys(self.calls, 0.0)
        self.switching_s = 0.0

    def on(self, slot):
        return [worker for found, worker in self.workers.items() if self.slot_of[found] == slot]

    def of(self, member):
        return [worker for found, worker in self.workers.items() if found.key == member]

    def serving(self, member):
        return [worker for worker in self.of(member) if worker.state is SERVING and worker.gate_open]

    # what is observed

    def tenants(self, slot):
        return {worker.replica: self.tenant(worker) for worker in self.on(slot)}

    def tenant(self, worker):
        if worker.back_at is not None:
            return Tenant(replica=worker.replica, state=TenantState.ABSENT)
        fields = {"gate_open": worker.gate_open, "is_deleting": worker.deleting_since is not None}
        if worker.dead_since or worker.replica in self.hidden:
            silent_s = (self.now - worker.dead_since).total_seconds() if worker.dead_since else 1.0
            return Tenant(replica=worker.replica, state=TenantState.SILENT, silent_s=silent_s, **fields)
        return Tenant(
            replica=worker.replica,
            state=worker.state,
            instance=str(worker.instance),
            running_requests=worker.running,
            request_counter=worker.counter,
            grant_epoch=worker.grant_epoch,
            refused_epoch=worker.refused_epoch,
            residual_bytes=2**20 if worker.state is ASLEEP else 0,
            missing_bytes=1 if worker.refused_epoch else 0,
            **fields,
        )

    def demands(self):
        return {member: self.demand(member) for member in self.calls}

    def demand(self, member):
        own = self.of(member)
        there = [worker for worker in own if worker.back_at is None and worker.deleting_since is None]
        places = tuple(Place(worker.replica, self.slot_of[worker.replica], RISE_S) for worker in there)
        wanted = int(self.calls[member] > 0 or any(worker.running for worker in own))
        since = self.waiting_since[member]
        return Demand(key=member, places=places, wanted=wanted, waiting_since=since)

    # what the operator does

    def operate(self, until=9):
        """Let the operator look, decide and step. `until` = how many steps of it there are before it dies."""
        decision = decide(list(self.slots.values()), self.demands(), self.policy, self.now, gateways_heard=self.heard)
        for slot in decision.apply_to(list(self.slots.values()), self.now).values():
            self.write(slot)
        for replica_ in decision.deepenings:
            self.do(commands.EndEngine(replica_, self.slots[self.slot_of[replica_]].epoch))
        for name in list(self.slots):
            for _ in range(until):
                if not self.step(name):
                    break

    def step(self, name):
        """Do the next step of a slot; tell whether there was one."""
        step = next_step(self.slots[name], self.tenants(name), self.demands(), self.policy, self.now)
        if isinstance(step, commands.Wait):
            return False
        if isinstance(step, commands.Write):
            self.write(step.slot)
            return True
        if isinstance(step, commands.GrantDevice):
            seen = [found.replica for found in self.tenants(name).values() if found.takes_memory]
            assert set(seen) <= set(self.slots[name].may_hold), f"{step} beside one that has memory"
        self.do(step)
        self.check()
        return True

    def write(self, slot):
        assert slot.epoch > self.slots[slot.name].epoch, "epochs only rise"
        self.slots[slot.name] = slot
        self.check()

    def do(self, command):
        """Carry out a command on a worker, if that is there and hears it."""
        self.sent.append(command)
        worker = self.workers[command.replica]
        if isinstance(command, commands.SetGate):
            worker.gate_open = command.is_open and worker.back_at is None
        elif isinstance(command, commands.DeletePod):
            worker.deleting_since = worker.deleting_since or self.now
        elif worker.back_at is None and worker.dead_since is None:
            self.tell(worker, command)
        self.check()

    def tell(self, worker, command):
        """Have a worker do what it is told, as its contract and its faults allow."""
        epoch = getattr(command, "epoch", worker.known_epoch)
        if epoch < worker.known_epoch:
            return
        worker.known_epoch = epoch
        fault, worker.faults = (worker.faults[0], worker.faults[1:]) if worker.faults else ("", worker.faults)
        if fault == "hang":
            return
        if fault == "refuse" and isinstance(command, commands.Sleep | commands.WakeUp):
            worker.refused_epoch = epoch
            return
        if fault == "fail" and isinstance(command, commands.WakeUp) and worker.grant_epoch:
            worker.state, worker.wakes_at = FAILED, None
            return
        getattr(self, f"tell_{type(command).__name__.lower()}")(worker, command)

    def tell_drain(self, worker, _):
        worker.state = DRAINING if worker.state is SERVING else worker.state

    def tell_sleep(self, worker, command):
        if worker.state not in {SERVING, DRAINING} or worker.counter != command.request_counter:
            worker.refused_epoch = command.epoch if worker.state not in {SERVING, DRAINING} else 0
        elif worker.running and not command.must_abort:
            worker.state = DRAINING
        else:
            self.calls[worker.replica.key] += worker.running  # gateways hold the streams
            worker.running, worker.state = 0, ASLEEP

    def tell_endengine(self, worker, _):
        self.calls[worker.replica.key] += worker.running
        worker.running, worker.state, worker.wakes_at = 0, STANDBY, None

    def tell_revokedevice(self, worker, _):
        if worker.state in {STANDBY, ASLEEP}:
            worker.grant_epoch = 0

    def tell_grantdevice(self, worker, command):
        if command.instance == str(worker.instance):
            worker.grant_epoch = command.epoch
            self.intruders.discard(worker.replica)

    def tell_wakeup(self, worker, _):
        if not worker.grant_epoch:
            return
        if worker.state is DRAINING:
            worker.state = SERVING
        elif worker.state in {STANDBY, ASLEEP}:
            seconds = RISE_S if worker.state is ASLEEP else START_S
            worker.state, worker.wakes_at = RISING, self.now + timedelta(seconds=seconds)

    # what the world does

    def call(self, member, count=1):
        """Have so many requests come in; they run for as long as `finish` is not called."""
        self.calls[member] += count
        self.flow()

    def flow(self):
        """Gateways send what they hold to whoever serves."""
        for member in self.calls:
            found = self.serving(member)
            if found and self.calls[member]:
                found[0].running += self.calls[member]
                found[0].counter += self.calls[member]
                self.calls[member] = 0
            self.waiting_since[member] = (self.waiting_since[member] or self.now) if self.calls[member] else None

    def intrude(self, worker, state):
        """Have a worker take memory that it was not given: the one thing that its contract forbids."""
        if worker.state in {STANDBY, ASLEEP} and worker.back_at is None and not worker.grant_epoch:
            worker.state = state
            self.intruders.add(worker.replica)

    def finish(self, member):
        for worker in self.of(member):
            worker.running = 0

    def crash(self, worker):
        """End a worker's container: the kernel frees what it had, and another one starts."""
        self.calls[worker.replica.key] += worker.running
        fresh = Worker(
            worker.replica, worker.instance + 1, back_at=self.now + timedelta(seconds=RESTART_S), faults=worker.faults
        )
        self.workers[worker.replica] = fresh

    def tick(self, seconds=1.0):
        """Let time pass: engines come up, pods go and come."""
        self.account(seconds)
        self.now += timedelta(seconds=seconds)
        for worker in list(self.workers.values()):
            if worker.back_at and worker.back_at <= self.now:
                worker.back_at = None
            if worker.deleting_since and (self.now - worker.deleting_since).total_seconds() >= 2:
                self.crash(worker)
            elif worker.wakes_at and worker.wakes_at <= self.now and not worker.dead_since:
                worker.state, worker.wakes_at = SERVING, None
        self.flow()
        self.check()

    def account(self, seconds):
        for member, since in self.waiting_since.items():
            waited_s = (self.now - since).total_seconds() if since else 0.0
            self.longest_wait_s[member] = max(self.longest_wait_s[member], waited_s)
            self.served_s[member] += seconds * any(worker.state in {SERVING, DRAINING} for worker in self.of(member))
        for slot in self.slots:
            self.switching_s += seconds * (not any(worker.state in {SERVING, DRAINING} for worker in self.on(slot)))

    def check(self):
        """At most so many have memory of a slot, and whoever has stands in what was written."""
        for name, slot in self.slots.items():
            lawful = [worker for worker in self.on(name) if worker.replica not in self.intruders]
            holding = [worker.replica for worker in lawful if worker.holds_memory]
            assert len(holding) <= self.policy.awake_per_slot, f"{holding} on slot {name}"
            assert len(set(slot.may_hold) - self.intruders) <= self.policy.awake_per_slot
            assert set(holding) <= set(slot.may_hold), f"{holding}, and written is {slot.may_hold}"
            granted = {worker.replica for worker in self.on(name) if worker.grant_epoch and worker.back_at is None}
            assert granted <= set(slot.may_hold), "a grant that nobody was to have"
            assert slot.phase is not SlotPhase.FOULED or slot.next is None
