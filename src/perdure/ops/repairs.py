"""The repairs that the doctor knows. Called by `perdure doctor --repair`; carried out by the store.

Only what is safe: nothing here runs a job that may have ended, drops one that could still run, or makes up a result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from perdure.errors import InvalidInput
from perdure.ids import ids_by
from perdure.ops.doctor import Finding
from perdure.store.protocols import Store, clock_of

BATCH = 500
"""A repair treats this many jobs per transaction, so that nobody waits long for it."""

log = logging.getLogger("perdure.doctor")


class Repair(NamedTuple):
    """A named repair; `does` completes the sentence "this will …"."""

    name: str
    does: str


REPAIRS: tuple[Repair, ...] = (
    Repair("remove_ended_rows", "remove the live rows of jobs that have ended"),
    Repair("fail_lost_jobs", "record jobs without a state as failed"),
    Repair(
        "settle_running",
        "record a lost run for jobs that run without one and put them back, or end them as their run did",
    ),
    Repair("rescue_running", "put jobs of stopped or unknown nodes back as after a crash"),
    Repair("close_open_runs", "close runs that hold no job as lost"),
    Repair("recount_waits", "settle dependencies on what has ended, and count anew what jobs wait for"),
    Repair("recount_flows", "count the members of flows anew"),
    Repair("end_flows", "end flows whose members have all ended"),
    Repair("land_again", "put jobs whose row contradicts itself where they belong"),
    Repair("free_permits", "free permits that no running job holds"),
    Repair("wake_lines", "look at lines of limits that nobody is going to look at"),
    Repair("reopen_keys", "open keys of limits that open later than they can"),
    Repair("free_business_keys", "free business keys without a live owner"),
    Repair("reserve_business_keys", "reserve the business keys that live jobs lack"),
    Repair("raise_queue_counters", "raise the counters of queues beyond their last job"),
    Repair("settle_reservations", "close queues that are reserved, and open those that are reserved for nobody"),
    Repair("remove_orphan_runs", "remove runs without a job"),
    Repair("remove_orphan_outcomes", "remove outcomes without a job"),
    Repair("remove_orphan_tags", "remove tags without a job"),
    Repair("remove_orphan_logs", "remove log lines without a job"),
)
"""In the order in which they are applied: what one leaves behind, a later one finds."""


def repairs_for(findings: Iterable[Finding]) -> list[Repair]:
    """The repairs for these findings, in the order in which to apply them."""
    wanted = {found.repair for found in findings}
    return [repair for repair in REPAIRS if repair.name in wanted]


def repair(store: Store, name: str) -> int:
    """Apply one repair and return how much it changed. 0: there was nothing (left) to put right.

    Each transaction looks again before it writes, changes a limited number of jobs, and is logged once it is durable;
    it is safe to run while workers do.
    """
    cure = next((known for known in REPAIRS if known.name == name), None)
    if cure is None:
        known_names = ", ".join(known.name for known in REPAIRS)
        raise InvalidInput(f"there is no repair {name!r}; known are {known_names}", code="repair_unknown")
    clock = clock_of(store)
    ids = ids_by(clock)
    total = 0
    while True:
        changed = store.repair(cure.name, clock.now(), ids, BATCH)
        if changed:
            log.info("repair %s: %d changed", cure.name, changed)
        total += changed
        if changed < BATCH:
            return total
