"""The doctor: everything it looks for, what a finding means and what to do about it. It changes nothing.

Called by `perdure doctor` and at the end of every test; asks the store for each check by its name (`store/repair`, the
queries are in `store/sql/doctor*.sql`). docs/doctor.md is compared with this table by a test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NoReturn, cast
from uuid import UUID

from perdure.clock import Micros
from perdure.errors import InvalidInput
from perdure.ids import to_uuid
from perdure.limit.key import needs_of, shown
from perdure.limit.room import Sort
from perdure.store.protocols import Store, clock_of


class Severity(StrEnum):
    """How bad it is."""

    VIOLATION = "violation"
    """A promise is broken: `perdure doctor` exits with 1."""
    WARNING = "warning"
    """Legal, but someone should look."""
    INFO = "info"
    """Worth knowing, nothing to do."""


Confirm = Callable[[Sequence[object]], bool]
"""Looks at what a row holds and says whether it is a finding: for what SQL alone cannot tell."""


class Check(NamedTuple):
    """One invariant. `explanation`: what a finding means and what to do. `repair`: the cure of that name, if any."""

    name: str
    severity: Severity
    explanation: str
    repair: str | None = None
    confirm: Confirm | None = None


def not_json(texts: Sequence[object]) -> bool:
    """True if one of these texts is there and is not JSON. Too deep to be read here does not mean unreadable."""
    return any(_is_wrong(text, object) for text in texts if isinstance(text, str))


def not_objects(texts: Sequence[object]) -> bool:
    """True if one of these texts is there and is not a JSON object, as all arguments and options are."""
    return any(_is_wrong(text, dict) for text in texts if isinstance(text, str))


def _is_wrong(text: str, sort: type) -> bool:
    try:
        return not isinstance(json.loads(text, parse_constant=_refuse), sort)
    except RecursionError:
        return False
    except ValueError:
        return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _checks(table: str) -> Iterator[Check]:
    """A line with name, severity and repair, then, indented, what a finding means and what to do."""
    for entry in re.split(r"\n(?! |$)", re.sub(r"\n#.*", "", table).strip()):
        head, *told = entry.splitlines()
        name, severity, *repair = head.split()
        explanation = " ".join(map(str.strip, told))
        yield Check(name, Severity(severity), explanation, repair[0] if repair else None, _CONFIRM.get(name))


def first_would_fit(line: Sequence[object]) -> bool:
    """True if the first of a line, by what it needs of the key, would fit in what is left of it. A rate should open."""
    key, needs, in_use, most, sort = line
    if most is None or sort not in (None, Sort.AT_ONCE):
        return True
    room, taken = int(cast("int", most)), int(cast("int", in_use))
    weight = next((need.weight for need in needs_of(cast("str | None", needs)) if need.key == key), 0)
    return min(weight, room) <= room - taken


_CONFIRM: dict[str, Confirm] = {
    "unreadable_payload": not_objects,
    "unreadable_result": not_json,
    "line_asleep": first_would_fit,
}

CHECKS = tuple(
    _checks("""
# lives
job_without_state violation fail_lost_jobs
    A job is neither live nor ended, so nobody will run it or see it fail; the repair records it as failed, and you
    decide whether to retry it.
live_without_job violation
    A live row has no job behind it: its payload is gone and it can never be claimed; restore the job from a backup.
ended_and_live violation remove_ended_rows
    A job is live although this life of it has ended, so it could run again; the outcome is what counts, and the repair
    removes the live row.
life_missing violation
    A job is in a later life but the outcome of an earlier one is missing; history was deleted by hand, restore it from
    a backup if it matters.
unknown_state violation
    A job or run is in a state that does not exist, so nobody will touch it; find out who wrote it, and set a state of
    docs/architecture.md by hand.
live_copy_differs violation
    The live row and the job disagree on kind, version, queue or business key; the job is what was enqueued, so correct
    the live row by hand.
# runs
running_without_run violation settle_running
    A job is running but no open run holds it, so nobody can finish it; the repair records a lost run and puts the job
    back as after a crash, or ends it the way its closed run did.
open_run_without_running_job violation close_open_runs
    A run is open although its job is not running; its holder cannot write any more, and the repair closes it as lost.
second_open_run violation close_open_runs
    A running job has another open run than the one that holds it; the other one's holder cannot write any more, and the
    repair closes it as lost.
run_without_job violation remove_orphan_runs
    A run belongs to no job; it is of no use, and the repair removes it.
run_of_no_life violation
    A run belongs to a life that its job never had; rows were changed by hand, compare with a backup.
run_end_disagrees violation
    A closed run has no end, or an open one has; a run is closed in one write, so the row was changed by hand: compare
    with a backup.
completed_without_run violation
    A job is completed but no run of that life completed it; its result may come from no run, look at its runs.
completed_twice violation
    Two runs of one life are recorded as completed, and only one can have been; rows were changed by hand, compare with
    a backup.
completed_run_not_ended violation
    A run completed but its job did not end with it, so the work may be done twice; look at the job, and cancel it if
    the work is done.
attempts_beyond_budget violation
    A job was tried more often than max_attempts allows; if its side effects must not repeat, look at its runs.
# nodes
running_without_node violation rescue_running
    A job is running on no node, so no rescue will ever find it; the repair puts it back as after a crash.
running_on_unknown_node violation rescue_running
    A job is running on a node that was never registered, so no rescue will ever find it; the repair puts it back as
    after a crash.
running_on_stopped_node warning rescue_running
    A job is running on a node that has stopped; any worker will rescue it, and so does the repair.
running_half_claimed violation
    A running job lacks what its claim should have written (time, attempt or deadline), so a time-out may pass
    unnoticed; wait for its end, or stop its node to have it rescued.
# waiting
waiting_but_held violation land_again
    A waiting job still carries a claim (node, run, deadline or a cancel request); the repair takes it off.
pause_disagrees violation land_again
    A job's paused flag and its state disagree; the flag counts, and the repair puts the job where it belongs.
block_disagrees violation land_again
    A job is blocked without waiting for another one, or waits for one without being blocked; the repair puts it where
    it belongs.
queued_too_early warning land_again
    A job is queued although its time had not come when it was; unless the clock was set back, the repair puts it where
    it belongs.
overdue warning
    A scheduled job was due more than five minutes ago and nobody queued it; start a worker.
held_without_limit violation land_again
    A job waits for a permit but names no limit, so no permit will ever come; the repair puts it where it belongs.
park_reason_disagrees violation land_again
    A job is parked for no known reason, or has a reason without being parked; the repair puts it back to where it
    waits, and a node that cannot run it parks it again.
# limits
permit_without_run violation free_permits
    A permit is held by no running job, so its limit has less room than it should; the repair frees it.
run_without_permit violation
    A job runs without the permit of its limit, so more may run at once than allowed; it is put right when its run ends.
over_limit info
    More is in use of a key than its limit allows: the limit fell while they ran, and nothing starts until enough have
    ended.
line_asleep violation wake_lines
    Jobs stand in line although their limit has room, and nobody is going to look at them; the repair wakes the line.
key_opens_never warning reopen_keys
    A limit opens further away than a whole window from now, as after the clock was set back, so its line waits too
    long; a worker sees to it within a minute, and so does the repair.
in_line_not_held violation land_again
    A job stands in the line of a limit but does not wait for one; the repair puts it where it belongs.
# keys
business_key_without_job violation free_business_keys
    A business key is held by a job that is not there, so nobody can use it; the repair frees it.
business_key_of_ended_job violation free_business_keys
    A business key is held by a job that has ended, so nobody can use it; the repair frees it.
business_key_not_its_own violation free_business_keys
    A business key is held by a live job that has another one or none; the repair frees it.
business_key_not_reserved violation reserve_business_keys
    A live job does not hold its business key, so a second job could take it; the repair reserves it, unless another
    live job has it: then cancel one of them.
ledger_without_job violation
    An idempotency key names a job that is not there and was not deleted by Perdure: an acknowledged job was lost;
    restore it from a backup.
key_not_in_ledger violation
    A job's idempotency key is not in the ledger, so a repeat would be enqueued again; do not enqueue it with that key
    until the ledger is restored from a backup.
# order
queue_missing violation raise_queue_counters
    A queue with live jobs has no row, so its counter starts over and new jobs overtake old ones (not on PostgreSQL,
    where one counter serves all queues); the repair adds the row.
queue_counter_behind violation raise_queue_counters
    A queue's counter is not beyond its last job, so new jobs overtake it; the repair raises the counter.
order_tie info
    Jobs have the same place in their queue; the older id goes first, so their order is still certain.
# reservations
reserved_for_nobody violation settle_reservations
    A queue is closed by a reservation, but none of it is active, so nothing will ever open it; the repair opens it.
reserved_but_open violation settle_reservations
    A reservation is active but does not close its queue, so jobs run beside its holder; the repair closes the queue
    until the reservation ends.
# links
edge_without_job violation recount_waits
    A dependency names a job that is not there, so what waits for it waits for ever; the repair removes the dependency
    and counts anew.
edge_on_ended_job violation recount_waits
    A job still waits for a job or flow that has ended; the repair lets it go on, or skips it if it needed another end.
waits_for_differs violation recount_waits
    A job waits for more or fewer jobs than it depends on, so it starts too late or too early; the repair counts anew.
dependents_not_flagged violation recount_waits
    A job does not know that others wait for it, so its end would not let them go on; the repair tells it.
flow_sum_differs violation recount_flows
    The members of a flow that have ended and those that have not are not all its members, so it ends too early or
    never; the repair counts them anew.
flow_not_ended warning end_flows
    All members of a flow have ended, but the flow has not; a worker sees to it within its lease, and so does the
    repair.
flow_ended_too_early violation
    A flow has ended, but some of its members have not; what waited for its end may have started too early.
flow_open_long info
    A flow is open, and nobody has added to it for a day; it ends only when it is sealed: perdure seal ID, or perdure
    cancel ID.
todo_stuck warning
    Work on many jobs (dependents, or a whole flow) was begun more than five minutes ago and is not done; start a
    worker.
superseded_by_missing warning
    The job that took another one's place is not there; unless it was deleted or old enough to go, its work was lost:
    restore it from a backup.
successor_missing warning
    The job that continues a retried one's work is not there; unless it was deleted or old enough to go, its work was
    lost: retry the ended job with as_new=True.
successor_not_linked violation
    A job and its automatic retry do not name each other, so the work may be done twice; look at both and cancel one.
two_successors violation
    A job was retried automatically by two jobs, so its work is done twice; cancel one of them and run perdure db check,
    because a unique index is missing.
ancestor_missing info
    The job this one came from (retry_of, parent or root) is not there any more: deleted or pruned.
template_without_version violation
    A template's newest version is not there, so the template cannot be used; restore its row in template_version from a
    backup.
template_missing warning
    The template that a job was made from, or that version of it, is not there; the job has all it needs, but nobody can
    see what it was made from.
slot_without_job warning
    A slot of a schedule names a job that is not there, so nobody can see what became of the planned instant; the job
    was removed without its slot.
# contents
impossible_number violation
    A value of a job or run is of the wrong type, or a number or time that it cannot be, so a worker sets the job aside
    when it meets it; rows were changed by hand, compare with a backup, or cancel the job.
time_backwards warning
    A job or run ended or started more than a minute before it could have; unless the clock was set back, rows were
    changed by hand.
unreadable_payload violation
    A job's payload, secrets, params, options or references are not a JSON object, so no node can run it as it was
    meant; cancel it and enqueue it again.
unreadable_result violation
    A job's result is not JSON, so nobody can read it; the job has ended all the same.
outcome_without_job violation remove_orphan_outcomes
    An outcome belongs to no job; it is of no use, and the repair removes it.
tag_without_job violation remove_orphan_tags
    A tag belongs to no job; the repair removes it.
log_without_job violation remove_orphan_logs
    A log line belongs to no job; the repair removes it.
""")
)


_OF_LIVE = re.findall(
    r"\w+",
    """live_without_job ended_and_live live_copy_differs running_without_run running_without_node
    running_on_unknown_node running_on_stopped_node running_half_claimed waiting_but_held pause_disagrees
    block_disagrees queued_too_early overdue held_without_limit park_reason_disagrees permit_without_run
    run_without_permit over_limit line_asleep key_opens_never in_line_not_held business_key_without_job
    business_key_of_ended_job business_key_not_its_own business_key_not_reserved queue_missing queue_counter_behind
    edge_without_job edge_on_ended_job waits_for_differs dependents_not_flagged""",
)
QUICK = tuple(check for check in CHECKS if check.name in _OF_LIVE)
"""Those that read only jobs that live, however many have ended."""

EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `examples`: a few ids of jobs, or names of queues, templates or limits."""

    name: str
    severity: Severity
    explanation: str
    count: int
    examples: tuple[str, ...]
    repair: str | None


def examine(store: Store, now: Micros | None = None, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Everything that is wrong, in the order of these checks. Empty: nothing is.

    Only reads. Each check sees one consistent snapshot, so jobs that change meanwhile give no false findings.
    """
    at = clock_of(store).now() if now is None else now
    try:
        looked = [_finding(check, store.check(check.name, at, EXAMPLES)) for check in checks]
    except NotImplementedError as reason:
        raise InvalidInput(
            f"the doctor cannot look into this store: {type(store).__name__} has no check() ({reason})",
            code="store_unsupported",
        ) from reason
    return [found for found in looked if found is not None]


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(found.severity is not Severity.VIOLATION for found in findings)


def _finding(check: Check, rows: Sequence[tuple[object, ...]]) -> Finding | None:
    if check.confirm is not None:
        rows = [row for row in rows if check.confirm(row[2:])]
    if not rows:
        return None
    count = len(rows) if check.confirm is not None else cast("int", rows[0][1])
    examples = tuple(_text(row[0]) for row in rows[:EXAMPLES])
    return Finding(check.name, check.severity, check.explanation, count, examples, check.repair)


def _text(example: object) -> str:
    if isinstance(example, bytes) and len(example) == 16:
        return str(to_uuid(example))
    if isinstance(example, str):
        return shown(example)
    return str(example) if isinstance(example, UUID) else repr(example)
