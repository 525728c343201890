"""`spec.lifecycle` → the noun of `model.wanted`. Pure. Raises only SpecError, also for what no schema can check."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dormouse_operator.model import Lifecycle, Prewarm
from dormouse_operator.parse.values import Raw, SpecError

LEVEL1_AFTER_S = 600  # where nothing is said
_DELAYS = ("level1AfterSeconds", "level2AfterSeconds", "level3AfterSeconds", "zeroAfterSeconds")
_CRON_FIELDS = "minute, hour, day of month, month and day of week, as in 45 7 * * MON-FRI"


def parse_lifecycle(lifecycle: Raw) -> Lifecycle:
    """Return when workers serve. A delay that is null is never."""
    delays_s = [_parse_delay(lifecycle, name) for name in _DELAYS]
    known = [(name, delay_s) for name, delay_s in zip(_DELAYS, delays_s, strict=True) if delay_s is not None]
    for (earlier, least_s), (name, delay_s) in pairwise(known):
        if delay_s <= least_s:
            words = f"allowed is more than spec.lifecycle.{earlier}, {least_s}"
            raise SpecError(f"spec.lifecycle.{name} is {delay_s}; {words}")
    return Lifecycle(
        desired_state=lifecycle.get("desiredState", "Auto"),
        drain_timeout_s=lifecycle.get("drainTimeoutSeconds", 60),
        sleep_level=lifecycle.get("sleepLevel", 1),
        level1_after_s=delays_s[0],
        level2_after_s=delays_s[1],
        level3_after_s=delays_s[2],
        zero_after_s=delays_s[3],
        min_active_s=lifecycle.get("minActiveSeconds", 60),
        prewarm=tuple(_parse_prewarm(index, item) for index, item in enumerate(lifecycle.get("prewarm") or ())),
        shrinks_requests=bool(lifecycle.get("shrinkRequests", False)),
        spare_engine=lifecycle.get("spareEngine", False),
        spares=lifecycle.get("spares", 0),
    )


def require_fitting_lifecycle(lifecycle: Lifecycle, parallelism: Raw, gpu: Raw) -> None:
    """Raise SpecError for what groups of ranks, and members of pools, do not have.

    Followers of several pods would wait in STANDBY beside the memory that they hold; ranks are processes of their own,
    which start anew whatever waits. A pool alone decides which of its members' pods are awake, and keeps all.
    """
    if lifecycle.spares and gpu.get("pool"):
        words = "cannot be set beside spec.gpu.pool, whose members keep their pods"
        raise SpecError(f"spec.lifecycle.spares {words}; remove one of the two")
    asked = {
        "level3AfterSeconds": lifecycle.level3_after_s is not None,
        "sleepLevel 3": lifecycle.sleep_level == 3,
        "spares": lifecycle.spares > 0,
    }
    if parallelism.get("pipeline", 1) != 1 and (field := next((name for name, it in asked.items() if it), "")):
        words = "needs spec.parallelism.pipeline 1, as groups of several pods have no STANDBY"
        raise SpecError(f"spec.lifecycle.{field} {words}; remove one of the two")
    for field in ("tensor", "pipeline"):
        if lifecycle.spare_engine and parallelism.get(field, 1) != 1:
            words = "needs spec.parallelism.tensor 1 and spec.parallelism.pipeline 1, as ranks are started anew"
            raise SpecError(f"spec.lifecycle.spareEngine {words}; remove one of the two")


def _parse_delay(lifecycle: Raw, name: str) -> int | None:
    delay_s: int | None = lifecycle.get(name, LEVEL1_AFTER_S if name == _DELAYS[0] else None)
    if delay_s is not None and delay_s < 1:
        raise SpecError(f"spec.lifecycle.{name} is {delay_s}; the least is 1, null is never")
    return delay_s


def _parse_prewarm(index: int, item: Raw) -> Prewarm:
    field, cron, zone = f"spec.lifecycle.prewarm[{index}]", item.get("cron", ""), item.get("timeZone", "UTC")
    if len(cron.split()) != 5:  # the library would take a sixth, for seconds
        raise SpecError(f"{field}.cron is {cron!r}; needed are five fields: {_CRON_FIELDS}")
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise SpecError(f"{field}.cron is {cron!r}: {error}; needed are {_CRON_FIELDS}") from error
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:  # not known; no path of ours; a directory
        words = "allowed are names of time zones such as Europe/Berlin, and UTC"
        raise SpecError(f"{field}.timeZone is {zone!r}; {words}") from error
    return Prewarm(cron, zone)
