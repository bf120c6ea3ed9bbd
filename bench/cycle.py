"""Rows about a job's way through: claimed in batches of 100 and completed, with small and with large payloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.floor import Floor, floor_at, make_file, same_shape
from bench.measure import in_turns, rate, scratch_folder
from bench.report import Figure, at_least, compared
from bench.sample import Desk

BATCH = 100


def small(rounds: int) -> list[Figure]:
    """100-byte payloads; about one checkpoint a round."""
    return [_cycle("cycle", "claim + finish by 100, 100-byte payloads", 100, 1_200, rounds)]


def large(rounds: int) -> list[Figure]:
    """50 KB payloads: read at the claim, never written again."""
    return [_cycle("cycle-50k", "claim + finish by 100, 50 KB payloads", 50_000, 200, rounds)]


def _cycle(name: str, what: str, payload_bytes: int, jobs: int, rounds: int) -> Figure:
    with scratch_folder() as folder:
        floor = floor_at(folder / "floor.db", payload_bytes)
        desk = _filled(folder / "ours.db", floor, jobs * (rounds + 1))
        fill(floor, jobs * (rounds + 1))
        run_ids = iter(floor.run_ids(jobs * (rounds + 1)))

        def theirs() -> None:
            for _ in range(0, jobs, BATCH):
                floor.cycle(run_ids, BATCH)

        measured = in_turns(lambda: rate(jobs, lambda: work_off(desk, jobs)), lambda: rate(jobs, theirs), rounds)
        floor.close()
        same_shape(folder / "ours.db", floor.path)
        desk.close()
    return compared(name, what, measured, at_least(0.7, "floor"))


def _filled(path: Path, floor: Floor, jobs: int) -> Desk:
    """Perdure's file is filled by the bare driver too: both sides then claim from files made the same way."""
    make_file(path)
    filler = Floor(path, floor.sample)
    fill(filler, jobs)
    filler.close()
    return Desk(path)


def fill(floor: Floor, jobs: int) -> None:
    for _ in range(0, jobs, BATCH):
        floor.enqueue_all(floor.lay_out(BATCH))
    floor.tidy()


def work_off(desk: Desk, jobs: int) -> None:
    for _ in range(0, jobs, BATCH):
        desk.finish(desk.claim(BATCH))


def profile_small(path: Path) -> Callable[[], None]:
    return _profiled(path, 100, 3_000)


def profile_large(path: Path) -> Callable[[], None]:
    return _profiled(path, 50_000, 600)


def _profiled(path: Path, payload_bytes: int, jobs: int) -> Callable[[], None]:
    floor = floor_at(path.with_name("floor.db"), payload_bytes)
    desk = _filled(path, floor, jobs + BATCH)
    work_off(desk, BATCH)
    return lambda: work_off(desk, jobs)
