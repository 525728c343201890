"""A host for tests of memory limits."""

from dormouse_worker.common.host import Host


class LimitedHost(Host):
    """The real host, but with a memory limit of our choice."""

    def __init__(self, limit_bytes):
        super().__init__()
        self.limit_bytes = limit_bytes

    def memory_limit_bytes(self):
        return self.limit_bytes
