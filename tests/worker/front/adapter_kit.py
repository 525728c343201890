"""For tests of adapters in the front: an engine that has them, and what it was told."""

from __future__ import annotations

import msgspec

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.testing.fake_engine import Script

DIGEST, OTHER = "ab" * 32, "cd" * 32
PENDING, LOADED, FAILED = control.LORA_STATE_PENDING, control.LORA_STATE_LOADED, control.LORA_STATE_FAILED


def script(digest=DIGEST, **fields):
    """Return an engine that has this adapter wherever it lies."""
    said = msgspec.json.encode(AdapterInfo(digest, 8, 1024)).decode()
    return Script(values={"add_lora": said}, **fields)


def opening(open_house):
    """Return who opens a house whose engine has room for two adapters."""

    def opened(the_script=None, **fields):
        return open_house(the_script or script(), engine={"enable_lora": True, "max_loras": 2}, **fields)

    return opened


def commands_of(house, *kinds):
    """Return what the engine was told, of these kinds."""
    return [command for command in house.engine.engine.commands if isinstance(command, kinds)]


async def until_open(house):
    """Wait until the front has tried what is wanted."""
    await house.front._adapters._opening
