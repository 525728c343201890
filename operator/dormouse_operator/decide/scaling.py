"""How many replicas a deployment should have now. Pure: a load, bounds and what was asked for lately → a number.

The arithmetic is that of Kubernetes' HorizontalPodAutoscaler. Each measure asks for

    ceil(total / target)        total = unfinished requests, or the sum of the workers' KV-cache use

replicas, unless what there is lies within a tenth of that; the measure that asks for most decides. What makes it hard:
- load comes in bursts and replicas come slowly: of what was asked for in the last five minutes the most stands, so that
  a pause between two bursts ends no replica. More replicas are asked for at once.
- a replica that does not serve yet has no KV cache to tell of: when more are asked for it counts as empty, when fewer
  as just full enough, so that neither is asked for because somebody is still loading.
- where the load is not known, and at the start of this process, what there is counts as asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from math import ceil

from dormouse_operator.model import Activity, Scaling

_ROUNDING = 1e-9  # 0.3 / 0.1 is a little below 3: what is missing by so little is not missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How quickly it reacts. The defaults are the HorizontalPodAutoscaler's."""

    up_window_s: float = 0.0  # more replicas only when asked for throughout so long
    down_window_s: float = 300.0  # fewer replicas only when asked for throughout so long
    tolerance: float = 0.1  # a load that differs from the target by at most this share changes nothing
    most_new: int = 4  # replicas added at once: so many, or as many as there are


DEFAULTS = Behaviour()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the load asked for at a moment."""

    at_s: float
    replicas: int


History = tuple[Asked, ...]  # oldest first


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, why, and what to remember for the next decision."""

    replicas: int
    reason: str
    history: History


def decide(
    now_s: float,
    scaling: Scaling,
    replicas: int,
    activity: Activity | None,
    history: History,
    behaviour: Behaviour = DEFAULTS,
) -> Decision:
    """Return how many replicas there should be. Without activity (unknown) only the bounds are kept.

    `now_s` never goes back; `history` is that of the last decision, empty for the first.
    """
    if not scaling.min_replicas <= replicas <= scaling.max_replicas:
        bounded = min(max(replicas, scaling.min_replicas), scaling.max_replicas)
        words = f"{replicas} replicas are outside of {scaling.min_replicas} to {scaling.max_replicas}"
        return Decision(bounded, words, history)
    held = Asked(now_s, replicas)
    if activity is None:
        return Decision(replicas, "the load is not known", _remember(history, held, behaviour))
    asked = Asked(now_s, asked_for(scaling, replicas, activity, behaviour.tolerance))
    remembered = _remember(history or (held,), asked, behaviour)
    stable = _stabilise(now_s, replicas, remembered, behaviour)
    allowed = min(stable, replicas + max(replicas, behaviour.most_new))
    bounded = min(max(allowed, scaling.min_replicas), scaling.max_replicas)
    return Decision(bounded, _explain(scaling, activity), remembered)


def asked_for(scaling: Scaling, replicas: int, activity: Activity, tolerance: float) -> int:
    """Return how many replicas this load asks for by itself."""
    wishes = []
    if scaling.target_outstanding is not None:
        wishes.append(_wish(activity.outstanding / scaling.target_outstanding, replicas, tolerance))
    if scaling.target_kv_usage is not None:
        wishes.append(_wish_by_usage(scaling.target_kv_usage, replicas, activity, tolerance))
    return max(wishes, default=replicas)


def _wish(load: float, replicas: int, tolerance: float) -> int:
    """Return how many replicas carry a load that is measured in full replicas; those there are, if nearly right."""
    is_near = abs(load / replicas - 1.0) <= tolerance + _ROUNDING
    return replicas if is_near else ceil(load - _ROUNDING)


def _wish_by_usage(target: float, replicas: int, activity: Activity, tolerance: float) -> int:
    """Return the wish by KV-cache use. Replicas that do not serve yet hold back either change."""
    awake = min(activity.awake_workers, replicas)
    load = awake * activity.mean_kv_cache_usage / target
    wish = _wish(load, replicas, tolerance)
    return max(wish, min(replicas, _wish(load + replicas - awake, replicas, tolerance)))


def _remember(history: History, asked: Asked, behaviour: Behaviour) -> History:
    """Add what was asked for, forget what is older than both windows."""
    oldest_s = asked.at_s - max(behaviour.up_window_s, behaviour.down_window_s)
    return (*dropwhile(lambda old: old.at_s <= oldest_s, history), asked)


def _stabilise(now_s: float, replicas: int, history: History, behaviour: Behaviour) -> int:
    """Return the number nearest to the present one that was not contradicted within the windows."""
    now = history[-1].replicas
    up = min([now, *(old.replicas for old in history if old.at_s > now_s - behaviour.up_window_s)])
    down = max([now, *(old.replicas for old in history if old.at_s > now_s - behaviour.down_window_s)])
    return min(max(replicas, up), down)


def _explain(scaling: Scaling, activity: Activity) -> str:
    parts = []
    if scaling.target_outstanding is not None:
        parts.append(f"{activity.outstanding} unfinished requests, {scaling.target_outstanding} per replica wanted")
    if scaling.target_kv_usage is not None:
        usage, workers = activity.mean_kv_cache_usage, activity.awake_workers
        parts.append(f"{usage:.0%} of the KV cache of {workers} workers in use, {scaling.target_kv_usage:.0%} wanted")
    return "; ".join(parts)
