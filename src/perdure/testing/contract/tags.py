"""Words that jobs can be found by. Part of the protocols `JobOperations` and `ReadOperations`."""

from __future__ import annotations

from perdure.job.reports import Completed, Failed
from perdure.store.rows import JobFilter
from perdure.testing.contract.rig import BROKEN, Rig


def test_a_job_has_the_tags_it_was_given_in_order(rig: Rig) -> None:
    assert rig.job(rig.enqueue(tags=("b", "a", "ä"))).tags == ("a", "b", "ä")


def test_a_job_without_tags_has_none(rig: Rig) -> None:
    assert rig.job(rig.enqueue()).tags == ()


def test_each_of_many_jobs_has_its_own_tags(rig: Rig) -> None:
    jobs = rig.store.enqueue([rig.new(tags=tags) for tags in ((), ("a",), ("a", "b"))])

    assert [rig.job(job.row.id).tags for job in jobs] == [(), ("a",), ("a", "b")]


def test_jobs_are_found_by_tag_newest_first(rig: Rig) -> None:
    wanted = rig.key("wanted")
    first = rig.enqueue(tags=(wanted, "x"))
    rig.enqueue(tags=(rig.key("other"),))
    second = rig.enqueue(tags=(wanted,))

    assert rig.jobs(JobFilter(tag=wanted)) == [second, first]


def test_tags_stay_after_the_end(rig: Rig) -> None:
    wanted = rig.key("wanted")
    claim = rig.start(tags=(wanted,))
    rig.finish(claim, Completed())

    assert rig.jobs(JobFilter(tag=wanted, state="completed")) == [claim.job_id]


def test_a_successor_has_the_tags_of_the_job_before_it(rig: Rig) -> None:
    claim = rig.start(tags=("b", "a"), as_new_job=True)
    rig.finish(claim, Failed(BROKEN))

    successor = rig.claim_one().job_id
    assert successor != claim.job_id
    assert rig.job(successor).tags == ("a", "b")


def test_a_retry_as_a_new_job_has_the_tags_of_the_old_one(rig: Rig) -> None:
    job_id = rig.cancel(rig.enqueue(tags=("b", "a"))).row.id
    again = rig.new().id

    assert rig.store.retry_as_new(job_id, again, rig.now).tags == ("a", "b")
