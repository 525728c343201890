"""The end of a gateway without a lost call: its clients are gone before it stops listening.

gRPC's server cancels what comes in between the moment at which it stops and the moment at which a client hears of it.
So connections have an age at which gRPC has clients change over without losing a call, and a gateway that ends, which
new connections no longer reach, goes on serving until nobody calls any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

CONNECTION_AGE_S = 20.0  # a connection is replaced then; the streams on it go on
LATEST_S = 1.1 * CONNECTION_AGE_S + 1.0  # gRPC spreads ages by a tenth
QUIET_S = 1.0


def connection_options() -> Mapping[str, int]:
    """Return the options of a server whose connections are replaced now and then."""
    return {"grpc.max_connection_age_ms": int(1e3 * CONNECTION_AGE_S)}


async def until_quiet(num_taken: Callable[[], int], *, timeout_s: float, quiet_s: float = QUIET_S) -> float:
    """Wait until no request was taken for `quiet_s`, at most `timeout_s`; return how many seconds that took."""
    clock = asyncio.get_running_loop().time
    began_s, seen = clock(), -1
    while num_taken() != seen and clock() - began_s < timeout_s:
        seen = num_taken()
        await asyncio.sleep(min(quiet_s, timeout_s))
    return clock() - began_s
