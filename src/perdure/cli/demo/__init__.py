"""`perdure demo`: what Perdure promises, shown and checked on a throw-away file. Registered in `cli/main`.

Light to import: `stage` and what it needs are loaded when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=100, max=100_000, help="How many jobs the shop gets.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="PATH", help="Keep the database as this new file and say how to look.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Line by line, without the live display.")]


def demo(jobs: Jobs = 3000, keep: Keep = None, plain: Plain = False) -> None:
    """Show what Perdure does, in under half a minute: jobs, failures, a killed worker and its jobs rescued.

    Works in a temporary folder that is gone afterwards, also after Ctrl-C; kill -9 leaves the folder, but no process.
    Exits with 0 if everything that was claimed was found true, 1 if not, 2 if it could not be run, 129, 130 or 143
    after a signal.
    """
    if keep is not None:
        _check_new(keep)
    from perdure.cli.demo.interrupts import Interrupts

    with Interrupts() as interrupts:  # from here on, so that the imports cannot be interrupted half-way either
        from perdure.cli.demo.stage import perform

        status = perform(jobs, keep, interrupts, plain=plain)
    raise typer.Exit(status)


def _check_new(path: Path) -> None:
    """Said before the work, not after it."""
    import os

    if path.exists() or path.is_symlink():
        raise typer.BadParameter(f"{path} is there already; name a file that is not", param_hint="--keep")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} is no folder that can be written to", param_hint="--keep")
