"""The table: one figure per line, beside what it is compared with and what it should be. Filled by the rows."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Rounds, middle_half
from perdure.store.sqlite.wal import affected


@dataclass(frozen=True)
class Target:
    """What a figure should be: at least a bound, or at most."""

    bound: float
    at_least: bool
    text: str

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Figure:
    """One line of the table. `spread` is where the middle half of the rounds lies; `notes` are printed below."""

    name: str
    what: str
    value: float
    unit: str
    spread: tuple[float, float]
    ours: str
    theirs: str
    target: Target | None = None
    notes: tuple[str, ...] = ()
    rounds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "for comparison"
        return "met" if self.target.met(self.value) else "MISSED"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "spread": list(self.spread),
            "target": self.target.text if self.target else None,
            "verdict": self.verdict,
            "notes": list(self.notes),
            "rounds": self.rounds,
        }


def at_least(bound: float, of: str) -> Target:
    return Target(bound, True, f"≥ {bound:g} × {of}")


def at_most(bound: float, of: str) -> Target:
    return Target(bound, False, f"≤ {bound:g} {of}")


def compared(name: str, what: str, rounds: Rounds, target: Target, theirs: str = "floor") -> Figure:
    """A figure that is a ratio of two rates."""
    return ratio_figure(name, what, rounds, target, theirs, lambda value: f"{value:,.0f}/s")


def ratio_figure(
    name: str, what: str, rounds: Rounds, target: Target, theirs: str, shown: Callable[[float], str]
) -> Figure:
    """A figure that is a ratio of two medians, with both of them and how far their rounds lay apart."""
    return Figure(
        name,
        what,
        rounds.ratio,
        "×",
        rounds.ratio_spread,
        _side(rounds.ours, shown),
        f"{theirs} {_side(rounds.theirs, shown)}",
        target,
        rounds={"ours": rounds.ours, "theirs": rounds.theirs},
    )


def _side(values: Sequence[float], shown: Callable[[float], str]) -> str:
    middle, (low, high) = statistics.median(values), middle_half(values)
    return f"{shown(middle)} ±{(high - low) / 2 / middle:.0%}"


def table(figures: Sequence[Figure]) -> str:
    """The figures in columns, for people; also readable as Markdown."""
    heads = ("measure", "Perdure", "compared with", "result", "middle half", "target", "")
    lines = [heads, *map(_cells, figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    ruled = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    body = "\n".join(_line(line, widths) for line in ruled)
    notes = "\n".join(f"  {figure.name}: {note}" for figure in figures for note in figure.notes)
    return f"{body}\n\n{notes}" if notes else body


def _cells(figure: Figure) -> tuple[str, ...]:
    low, high = figure.spread
    return (
        figure.what,
        figure.ours,
        figure.theirs,
        f"{figure.value:.2f} {figure.unit}",
        f"{low:.2f}–{high:.2f}",
        figure.target.text if figure.target else "",
        figure.verdict,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "wal_guard": affected(sqlite3.sqlite_version_info[:3]),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def headline(facts: dict[str, Any]) -> str:
    guard = "under the WAL guard" if facts["wal_guard"] else "without the WAL guard"
    return (
        f"Python {facts['python']}, SQLite {facts['sqlite']} {guard}, synchronous=FULL, {facts['machine']},"
        f" {facts['cores']} cores, load {facts['load']}"
    )


def write_json(path: Path, facts: dict[str, Any], figures: Sequence[Figure]) -> None:
    content = {"environment": facts, "figures": [figure.as_json() for figure in figures]}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
