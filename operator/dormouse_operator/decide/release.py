"""What the operator's settings say of all deployments alike, as far as decisions need it. Nouns only. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_operator.decide.seals import Seals
from dormouse_operator.model import Arrows, Picker


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release's settings. They stay as they are while its operator runs."""

    default_image: str  # of workers, where the spec names none
    agreement_timeout_s: float = 10.0  # so long the first agreement waits for reports
    operator_keys: tuple[str, ...] = ()  # public, by which workers know us; none: no pod is condemned for its key
    seals: Seals | None = None  # by which we know pods that we made; None: all that name us as owner are believed
    picker: Picker | None = None  # None: other people's gateways have nobody to ask
    arrows: Arrows | None = None  # what workers may connect to; None: no deployment has a network policy
