"""Requests come and go while endpoints do: every one is counted once, and only what is unused is closed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from dormouse_gateway.routing.policy import Demand
from dormouse_gateway.testing.workers import endpoint
from dormouse_gateway.workers.pool import EndpointPool
from dormouse_kube.reflector import ObjectKey

DEMANDS = st.builds(Demand, st.integers(0, 50), st.integers(0, 50), st.integers(1, 3), st.integers(1, 9))


class Traffic(RuleBasedStateMachine):
    """Endpoints come, go and change while requests start and end, in any order."""

    slots = Bundle("slots")

    def __init__(self):
        super().__init__()
        self.pool = EndpointPool()
        self.held = []  # slots not yet released
        self.opened = set()  # endpoints that a request went to and that nobody closed
        self.known = {}  # pod → endpoint

    @rule(pod=st.sampled_from("abcd"), ready=st.booleans(), host=st.sampled_from("12"), of=st.sampled_from(["t", "o"]))
    def put(self, pod, ready, host, of):
        made = endpoint(pod, of, ready=ready, address=f"10.0.0.{host}:1")
        self.known[pod] = made
        self.close(self.pool.put(made))

    @rule(pod=st.sampled_from("abcd"))
    def remove(self, pod):
        self.known.pop(pod, None)
        self.close(self.pool.remove(ObjectKey("default", pod)))

    @rule(target=slots, of=st.sampled_from(["t", "o"]), need_ready=st.booleans(), demand=DEMANDS)
    def acquire(self, of, need_ready, demand):
        candidates = {e.id for e in self.known.values() if e.deployment.name == of and (e.ready or not need_ready)}
        ready = {e.id for e in self.known.values() if e.deployment.name == of and e.ready}
        outstanding = {e: sum(s.tokens_left for s in self.held if s.endpoint.id == e) for e in candidates}
        slot = self.pool.acquire(ObjectKey("default", of), need_ready=need_ready, demand=demand)
        if not candidates:
            assert slot is None
            return multiple()
        pool = ready or candidates
        assert slot.endpoint.id in pool
        assert outstanding[slot.endpoint.id] == min(outstanding[e] for e in pool), "least tokens"
        self.held.append(slot)
        self.opened.add(slot.endpoint.id)
        return slot

    @rule(slot=slots)
    def advance(self, slot):
        slot.advance()

    @rule(slot=consumes(slots))
    def release(self, slot):
        self.held.remove(slot)
        self.close(self.pool.release(slot))

    def close(self, endpoints):
        for one in endpoints:
            assert one not in {slot.endpoint.id for slot in self.held}, "nothing in use is closed"
            assert one not in {known.id for known in self.known.values()}, "nothing known is closed"
            self.opened.discard(one)

    @invariant()
    def every_running_request_is_counted_once(self):
        assert self.pool.in_flight().total() == len(self.held)

    @invariant()
    def every_token_is_counted_once(self):
        counted = sum(slot.tokens for slot in self.pool._all())
        assert counted == sum(ticket.tokens_left for ticket in self.held)

    @invariant()
    def no_connection_is_left_behind(self):
        used = {slot.endpoint.id for slot in self.held} | {known.id for known in self.known.values()}
        assert self.opened <= used

    @invariant()
    def every_known_endpoint_stands_in_the_pool_once(self):
        states = self.pool.states()
        assert sum(n for (_, state), n in states.items() if state != "retired") == len(self.known)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
