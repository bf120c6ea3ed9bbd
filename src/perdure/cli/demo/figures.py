"""What the demo measures on its way. Filled by `acts`, read by `closing`; every number is of this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from uuid import UUID


@dataclass
class Figures:
    """Rates are per second; times in seconds."""

    accepted: set[UUID] = field(default_factory=set[UUID])
    """The jobs whose enqueue returned."""
    doomed: set[UUID] = field(default_factory=set[UUID])
    """Those of them that are meant to fail."""
    parents: int = 0
    """Those that each enqueue another one."""
    single_rate: float = 0.0
    batch_rate: float = 0.0
    mixed_rate: float = 0.0
    mixed: int = 0
    empty_rate: float = 0.0
    empty: int = 0
    latencies_s: list[float] = field(default_factory=list[float])
    in_hand: set[UUID] = field(default_factory=set[UUID])
    """The jobs that the killed worker held."""
    rescue_s: float = 0.0
    surprises: list[str] = field(default_factory=list[str])
    """What did not go as the acts say."""


def spoken(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed (nearest rank). There must be one."""
    ranked = sorted(values)
    return ranked[max(ceil(len(ranked) * percent / 100), 1) - 1]
