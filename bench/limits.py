"""Rows about limits: turns of 100 that finish and claim, with and without limits, on one SQLite file each, in CPU time:
a loaded machine then says the same. `python -m bench.limits` prints these rows alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from bench.measure import in_turns, scratch_folder
from bench.report import Figure, Target, at_least, at_most, compared, ratio_figure
from perdure.job.model import Claim, NewJob
from perdure.job.reports import Completed
from perdure.limit.key import key_of
from perdure.store.rows import Lane, LimitRule, Turn
from perdure.testing.contract.rig import Rig

BATCH = 100
JOBS = 2_000
ROUNDS = 9
LINE = {False: 100_000, True: 1_000_000}
KEYS = {False: 50_000, True: 100_000}
FEW = 1_000
TURNS = 20

Needs = Callable[[int], str | None]
"""What the nth job of a round carries."""


def keys(rounds: int) -> list[Figure]:
    """Figure 7: the drain, at the room that each sort of limit leaves, beside the same without limits."""
    chance = random.Random(1)
    rounds = min(rounds, ROUNDS)
    return [
        _drain("limits-keys", "1,000 keys with limit 2", (2, lambda _: _key(chance.randrange(1_000))), 0.65, rounds),
        _drain("limits-own", "every job its own key, limit 1", (1, _key), 0.75, rounds),
        _drain(
            "limits-one", "one key with limit 50, beside plain turns of 50", (50, lambda _: _key(0)), 0.6, rounds, 50
        ),
        _enqueue(rounds),
    ]


def lines(rounds: int, large: bool) -> list[Figure]:
    """Figure 9: a turn with very many jobs in one line, or keys in line, beside one with 1,000; and how soon a job of
    another key starts behind a burst."""
    rounds = min(rounds, ROUNDS)
    in_line, keys = LINE[large], KEYS[large]
    return [
        _turn_with("limits-line", f"turn with {in_line:,} in one line", in_line, lambda _: _key(0), rounds),
        _turn_with(
            "limits-many-keys", f"turn with {keys:,} keys in line", 2 * keys, lambda number: _key(number // 2), rounds
        ),
        _behind_a_burst(in_line),
    ]


def _key(value: int) -> str:
    return f"{key_of('tenant', value)}*1"


class Side:
    """A file of its own with jobs in it, worked off turn by turn."""

    def __init__(self, path: Path, most: int) -> None:
        self._rig = Rig(str(path))
        self._rig.store.upgrade()
        self._rig.store.declare_limits([LimitRule("tenant", "at_once", most)], ["bench"], self._rig.now)
        self._held: list[Claim] = []

    def fill(self, jobs: int, needs: Needs) -> None:
        self.enqueue(self.new(jobs, needs))

    def new(self, jobs: int, needs: Needs) -> list[NewJob]:
        return [_needing(self._rig.new(queue="bench"), needs(number)) for number in range(jobs)]

    def enqueue(self, new: Sequence[NewJob]) -> None:
        for start in range(0, len(new), 1_000):
            self._rig.store.enqueue(new[start : start + 1_000])

    def turn(self, room: int = BATCH) -> int:
        """Returns how many it finished."""
        rig, held = self._rig, self._held
        finishes = [rig.report(claim, Completed()) for claim in held]
        turn = Turn(finishes, lanes=[Lane("bench", room)], claimer=rig.claimer(room))
        self._held = rig.store.turn(turn, rig.now).claims
        return len(held)

    def has_started(self, needs: str) -> bool:
        return any(claim.live.limit_key == needs for claim in self._held)

    def drain(self, room: int) -> None:
        while self.turn(room) or self._held:
            pass

    def close(self) -> None:
        self._rig.close()


def _needing(job: NewJob, text: str | None) -> NewJob:
    """As an app makes them of a kind that has a limit, or of one without any options."""
    plan = job.plan._replace(options=None, limit_key=text, plain=text is None)
    return job._replace(plan=plan, state="queued" if text is None else "held")


def _of_cpu(jobs: int, work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return jobs / (time.process_time() - started)


def _drain(name: str, what: str, limit: tuple[int, Needs], bound: float, rounds: int, room: int = BATCH) -> Figure:
    most, needs = limit
    with scratch_folder() as folder:
        files = count()

        def drained(of: Needs) -> float:
            side = Side(folder / f"{next(files)}.db", most)
            side.fill(JOBS, of)
            side.turn(room)
            rate = _of_cpu(JOBS, lambda: side.drain(room))
            side.close()
            return rate

        measured = in_turns(lambda: drained(needs), lambda: drained(lambda _: None), rounds)
    return compared(name, what, measured, at_least(bound, "plain"), "plain")


def _enqueue(rounds: int) -> Figure:
    with scratch_folder() as folder:
        sides = [Side(folder / f"{name}.db", 2) for name in ("limited", "plain")]
        needs: Sequence[Needs] = (lambda n: _key(n % 100), lambda _: None)

        def filled(which: int) -> float:
            new = sides[which].new(JOBS, needs[which])
            return _of_cpu(JOBS, lambda: sides[which].enqueue(new))

        measured = in_turns(lambda: filled(0), lambda: filled(1), rounds)
        for side in sides:
            side.close()
    what = "enqueue of 1,000 a transaction, 100 keys"
    return compared("limits-enqueue", what, measured, at_least(0.8, "plain"), "plain")


def _turn_with(name: str, what: str, jobs: int, needs: Needs, rounds: int) -> Figure:
    """Each side first looks at all jobs once, so that they stand in line; what a round has ended is replaced by as
    many, which are looked at before the next is timed."""
    with scratch_folder() as folder:
        sides = [_lined_up(folder / f"{number}.db", number, needs) for number in (jobs, FEW)]

        def turns(side: Side) -> float:
            cost = 1 / _of_cpu(TURNS, lambda: [side.turn(10) for _ in range(TURNS)])
            side.fill(10 * TURNS, needs)
            side.turn(10)
            return cost

        measured = in_turns(lambda: turns(sides[0]), lambda: turns(sides[1]), rounds)
        for side in sides:
            side.close()
    target, beside = Target(1.2, False, f"≤ 1.2 × {FEW:,}"), f"{FEW:,}"
    return ratio_figure(name, what, measured, target, beside, lambda value: f"{value * 1_000:.2f} ms")


def _lined_up(path: Path, jobs: int, needs: Needs) -> Side:
    side = Side(path, 10 if needs(0) == needs(jobs - 1) else 1)
    side.fill(jobs, needs)
    for _ in range(jobs // 1_000 + TURNS):
        side.turn(10)
    return side


def _behind_a_burst(jobs: int) -> Figure:
    with scratch_folder() as folder:
        side = Side(folder / "jobs.db", 10)
        side.fill(jobs, lambda _: _key(0))
        side.fill(1, lambda _: _key(1))
        began, number = time.perf_counter(), 0
        while not side.has_started(_key(1)):
            side.turn(20)  # twice what the key of the burst may have
            number += 1
        waited = time.perf_counter() - began
        side.close()
    what, turns = f"a job of another key behind a burst of {jobs:,}: until it starts", f"{number} turns of 20"
    return Figure("limits-burst", what, waited, "s", (waited, waited), turns, "", at_most(1, "s"))


def main() -> None:
    for figure in _all():
        print(f"{figure.what}: {figure.value:.2f} {figure.target.text if figure.target else ''} {figure.verdict}")


def _all() -> Iterator[Figure]:
    yield from keys(ROUNDS)
    yield from lines(ROUNDS, large=False)


if __name__ == "__main__":
    main()
