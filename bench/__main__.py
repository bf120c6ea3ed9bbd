"""`python -m bench [--large] [names…]`: measures and prints the table. A missed figure is printed, not an error."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import (
    cycle,
    depth,
    drain,
    enqueue,
    fairness,
    flows,
    limits,
    listings,
    locked,
    permits,
    pruning,
    questions,
    schedules,
    servers,
    start,
    waiting,
)
from bench.measure import ROUNDS, scratch_folder
from bench.report import Figure, environment, headline, table, write_json


class Row(NamedTuple):
    """`run` measures; `profile` prepares Perdure's side of it and gives the part worth profiling."""

    run: Callable[[int], list[Figure]]
    profile: Callable[[Path], Callable[[], object]] | None = None


def rows(*, large: bool) -> dict[str, Row]:
    jobs = depth.LARGE if large else depth.USUAL
    runs = questions.LARGE if large else questions.USUAL
    listed = listings.LARGE if large else listings.USUAL
    return {
        "enqueue": Row(enqueue.single, enqueue.profile_single),
        "threads": Row(enqueue.threads),
        "many": Row(enqueue.bulk, enqueue.profile_bulk),
        "cycle": Row(cycle.small, cycle.profile_small),
        "cycle-50k": Row(cycle.large, cycle.profile_large),
        "fairness": Row(fairness.beside_busy_writers),
        "locked": Row(locked.requests),
        "drain": Row(drain.against_huey),
        "pruning": Row(pruning.while_pruning),
        "latency": Row(waiting.latency),
        "latency-postgres": Row(waiting.latency_postgres),
        "rescue": Row(waiting.rescue),
        "idle": Row(waiting.idle),
        "idle-postgres": Row(waiting.idle_postgres),
        "memory": Row(lambda _rounds: drain.flat_memory(large)),
        "depth": Row(lambda rounds: depth.claim_cost(rounds, jobs), depth.profile_claims),
        "questions": Row(lambda rounds: questions.answers(rounds, runs)),
        "listings": Row(lambda rounds: listings.looks(rounds, listed)),
        "drain-postgres": Row(servers.drain),
        "drain-mariadb": Row(servers.drain_mariadb),
        "threads-postgres": Row(servers.threads),
        "many-postgres": Row(servers.many),
        "depth-postgres": Row(lambda rounds: servers.depth(rounds, jobs)),
        "depth-mariadb": Row(lambda rounds: servers.depth_mariadb(rounds, jobs)),
        "workers-postgres": Row(servers.workers),
        "flows": Row(lambda _rounds: flows.on_sqlite(large)),
        "chain": Row(lambda _rounds: flows.chain(large)),
        "batch-memory": Row(lambda _rounds: flows.memory(large)),
        "wide": Row(lambda _rounds: flows.wide(large)),
        "flows-postgres": Row(lambda _rounds: flows.on_postgres(large)),
        "limits": Row(limits.keys),
        "lines": Row(lambda rounds: limits.lines(rounds, large)),
        "limits-postgres": Row(permits.on_postgres),
        "permits": Row(permits.latency),
        "two-limits": Row(permits.two_limits),
        "rates": Row(permits.rates),
        "ticks": Row(schedules.ticks, schedules.profile_tick),
        "lateness": Row(schedules.lateness),
        "drain-schedules": Row(schedules.beside_a_drain),
        "start": Row(start.commands),
    }


def main() -> None:
    known = rows(large=False)
    parser = argparse.ArgumentParser(prog="python -m bench", description="Perdure beside the bare driver.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which rows; all by default: {', '.join(known)}")
    parser.add_argument(
        "--large",
        action="store_true",
        help="depth with 1 M + 1 M + 5 M jobs (file is kept), questions with 1 M runs, listings with 1 M jobs,"
        " flows of 100 k, 1 M jobs in a line",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    profiled = [name for name, row in known.items() if row.profile]
    parser.add_argument("--profile", choices=profiled, help="profile Perdure's side of one row instead")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no row is called {unknown[0]!r}; there are {', '.join(known)}")
    if given.rounds < 2:
        parser.error("a spread needs at least 2 rounds")
    if given.profile:
        profile(known[given.profile])
    else:
        measure(rows(large=given.large), given.names or list(known), given.rounds, given.json)


def measure(known: dict[str, Row], names: list[str], rounds: int, target: Path | None) -> None:
    facts = environment()
    print(headline(facts), flush=True)
    started = time.monotonic()
    figures: list[Figure] = []
    for name in names:
        print(f"  {name} …", end="", flush=True)
        begun = time.monotonic()
        found = known[name].run(rounds)
        figures += found
        print(f" {'; '.join(f'{figure.value:.2f} {figure.unit}' for figure in found)} ({_since(begun)})", flush=True)
    print(f"\n{table(figures)}\n")
    missed = [figure.what for figure in figures if figure.verdict == "MISSED"]
    print(f"MISSED: {'; '.join(missed)}" if missed else "All targets met.")
    print(
        f"{rounds} rounds of each side in turns, after a warm-up; {_since(started)}; load now {environment()['load']}"
    )
    if target:
        write_json(target, facts, figures)


def profile(row: Row) -> None:
    assert row.profile is not None
    with scratch_folder() as folder:
        work = row.profile(folder / "ours.db")
        profiler = cProfile.Profile()
        profiler.runcall(work)
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(35)


def _since(begun: float) -> str:
    return f"{time.monotonic() - begun:.0f} s"


if __name__ == "__main__":
    main()
