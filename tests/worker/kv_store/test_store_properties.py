"""Two processes over one root against a dictionary: what is read was written, and the budget holds at every step."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dormouse_worker.kv_store.file_store import FileBlockStore
from dormouse_worker.kv_store.interface import Miss
from dormouse_worker.kv_store.sealed_store import SealedStore, Secret
from dormouse_worker.kv_store.testing import DictBlockStore
from tests.worker.kv_store.store_files import REALM, TAKEN, block, content, read, taken

NAMES = st.sampled_from([bytes([number]) for number in range(12)])
WHO = st.integers(0, 1)


class StoreMachine(RuleBasedStateMachine):
    """Every rule is something that one of the processes does."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.limit = 9 * TAKEN
        self.stores = [self.make() for _ in range(2)]
        self.model = DictBlockStore()

    def make(self):
        """Return a store over the root, as a process has it."""
        return FileBlockStore(self.root, REALM, self.limit)

    @rule(who=WHO, names=st.lists(NAMES, min_size=1, max_size=4, unique=True), cost=st.floats(0, 2))
    def write(self, who, names, cost):
        blocks = [block(name) for name in names]
        self.stores[who].write(blocks, cost)
        self.model.write(blocks)

    @rule(who=WHO, name=NAMES)
    def read(self, who, name):
        got = read(self.stores[who], name)
        assert got in {Miss.ABSENT, content(name)}
        assert got is Miss.ABSENT or self.model.has(name)

    @rule(who=WHO, names=st.lists(NAMES, max_size=3))
    def touch(self, who, names):
        self.stores[who].touch(names, 0.5)

    @rule(who=WHO, name=NAMES)
    def drop(self, who, name):
        self.stores[who].drop([name])
        self.model.drop([name])
        assert read(self.stores[1 - who], name) is Miss.ABSENT

    @rule(who=WHO)
    def clear(self, who):
        self.stores[who].clear()
        self.model.clear()
        assert taken(self.root) == 0

    @rule(who=WHO)
    def restart(self, who):
        self.stores[who] = self.make()

    @invariant()
    def the_budget_holds(self):
        assert taken(self.root) <= self.limit
        for store in self.stores:
            store.drop([])  # whoever writes looks first
            assert store.num_bytes == taken(self.root)

    def teardown(self):
        shutil.rmtree(self.root)


class SealedMachine(StoreMachine):
    """The same, encrypted: a block and its seal take as many pages."""

    def make(self):
        secret = Secret(b"s" * 32, REALM)
        return SealedStore(FileBlockStore(self.root, secret.realm, self.limit), secret)


SealedMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestSealedMachine = SealedMachine.TestCase
StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStoreMachine = StoreMachine.TestCase
