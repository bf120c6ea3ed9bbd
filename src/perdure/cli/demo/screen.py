"""How the demo looks: sentences that stay, and below them, in a terminal, a few lines that move. Called by `acts`.

Without a terminal, and with --plain, a line a second stands for what moves. Only the basic styles, which every terminal
shows on light and on dark, and NO_COLOR takes the colours away.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.cli.show import visible

LABEL = 9
WIDEST = 100
EVERY_S = 1.0


class Standing(NamedTuple):
    """How the work stands right now."""

    ended: int
    total: int
    running: int
    waiting: int
    rate: float
    workers: Sequence[tuple[int, int]] = ()
    """Process id, and how many jobs it has in hand."""

    def __str__(self) -> str:
        return f"{self.ended:,} of {self.total:,} ended, {self.running} running, {self.rate:,.0f} jobs/s"


class Screen:
    """Where the demo says what it does. Leaving `with` gives the terminal back as it was."""

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.is_live = (
            sys.stdout.isatty() and self.console.is_interactive and not plain
        )  # FORCE_COLOR makes no terminal
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if self.is_live else None
        self._last = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        if self._live is not None:
            self._live.stop()

    @property
    def width(self) -> int:
        return min(self.console.width, WIDEST)

    def say(self, label: str, sentence: str, style: str = "") -> None:
        """A sentence that stays, under a word that says which part it belongs to."""
        self._last = time.monotonic()
        margin = " " * (LABEL + 2)
        lines = textwrap.wrap(visible(sentence), max(self.width - len(margin), 30), break_on_hyphens=False)
        self.console.print(Text.assemble((f"{label:<{LABEL}}  ", "bold"), (lines[0], style)), soft_wrap=True)
        for line in lines[1:]:
            self.console.print(Text.assemble(margin, (line, style)), soft_wrap=True)

    def command(self, line: str) -> None:
        """Something to copy: on a line of its own, never broken."""
        self.console.print(Text(f"{' ' * (LABEL + 2)}{visible(line)}", "bold"), soft_wrap=True)

    def show(self, standing: Standing) -> None:
        """What moves, as it is now."""
        if self._live is not None:
            self._live.update(_moving(standing, self.width), refresh=True)
        elif time.monotonic() - self._last >= EVERY_S and standing.ended < standing.total:
            self.say("", f"... {standing}")

    def doing(self, what: str) -> None:
        """What takes a moment, for those who watch."""
        if self._live is not None:
            self._live.update(Group(Text(""), Text(f"{what} ...")), refresh=True)

    def calm(self) -> None:
        """Nothing moves for now."""
        self._last = time.monotonic()
        if self._live is not None:
            self._live.update(Text(""), refresh=True)


def _moving(standing: Standing, width: int) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(
            total=max(standing.total, 1),
            completed=standing.ended,
            width=max(10, width - 40),
            style="dim",
            complete_style="cyan",
            finished_style="green",
        ),
        Text(f"{standing.ended:,} of {standing.total:,}", "bold"),
        Text(f"{standing.rate:,.0f} jobs/s"),
    )
    below = [f"waiting {standing.waiting:,}", f"running {standing.running}"]
    below += [f"worker {pid}: {held} in hand" for pid, held in standing.workers]
    return Group(Text(""), line, Text("   ".join(below), overflow="ellipsis", no_wrap=True))
