"""Kinds of jobs that do little and remember what was done."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure import Cancel, Fail, JobContext, Kind, Perdure, Skip

Any_ = Kind[..., Any, ..., Any]


class Kinds(NamedTuple):
    """`done`: what `note` was called with, in order."""

    done: list[str]
    note: Any_
    """Remembers its text, and returns it."""
    number: Any_
    """Returns the number."""
    double: Any_
    """Returns twice the number."""
    fail: Any_
    """Fails, unless `mended` has something in it."""
    mended: list[str]
    stop: Any_
    """Ends as it is told: Cancel, Skip or Fail."""
    join: Any_
    """Returns the results of a flow, by its name or id."""
    fill: Any_
    """Adds `double` for so many numbers to a flow."""
    grow: Any_
    """Adds another one like itself to its own flow, so many levels deep."""


def kinds_of(app: Perdure) -> Kinds:  # noqa: C901 - a list of small functions
    done: list[str] = []
    mended: list[str] = []

    @app.job
    def note(text: str) -> str:
        done.append(text)
        return text

    @app.job
    def number(n: int) -> int:
        return n

    @app.job
    def double(n: int) -> int:
        return 2 * n

    @app.job(retry=1)
    def fail(text: str = "fail") -> str:
        if mended:
            done.append(text)
            return text
        raise ValueError("broken")

    @app.job(retry=1)
    def stop(how: str) -> None:
        raise {"Cancel": Cancel, "Skip": Skip, "Fail": Fail}[how]("as told")

    @app.job
    def join(ctx: JobContext, flow: str | None = None) -> list[Any]:
        return list(ctx.results(flow))

    @app.job
    def fill(ctx: JobContext, n: int, into: str = "more") -> int:
        return ctx.flow[into].add_many(double.new(i) for i in range(n))

    @app.job
    def grow(ctx: JobContext, levels: int) -> None:
        done.append(f"level {levels}")
        if levels:
            ctx.flow.add(grow.new(levels - 1))

    return Kinds(done, note, number, double, fail, mended, stop, join, fill, grow)
