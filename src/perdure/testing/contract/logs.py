"""Captured log lines. Protocol `LogOperations`."""

from __future__ import annotations

from perdure.ids import JobId
from perdure.job.model import Claim
from perdure.job.reports import Completed, Failed
from perdure.store.rows import LogLine
from perdure.testing.contract.rig import BROKEN, Rig


def _lines(rig: Rig, claim: Claim, *numbers: int) -> list[LogLine]:
    return [
        LogLine(claim.run_id, number, claim.job_id, rig.now, "INFO", f"line {number}", '{"n":1}') for number in numbers
    ]


def test_lines_are_kept_as_written_and_read_in_order(rig: Rig) -> None:
    claim = rig.start()
    rig.store.append_log(_lines(rig, claim, 2, 1))
    rig.store.append_log(_lines(rig, claim, 3))

    assert rig.store.log(claim.job_id, None, 10) == _lines(rig, claim, 1, 2, 3)


def test_a_line_with_a_nul_is_kept_where_need_be_with_a_sign_for_it(rig: Rig) -> None:
    claim = rig.start()
    [line] = _lines(rig, claim, 1)
    rig.store.append_log([line._replace(message="a\0b")])

    [kept] = rig.store.log(claim.job_id, None, 10)

    assert kept.message in ("a\0b", "a\u2400b")


def test_the_lines_of_all_runs_of_a_job_follow_each_other(rig: Rig) -> None:
    first = rig.start()
    rig.finish(first, Failed(BROKEN))
    second = rig.claim_one()
    rig.store.append_log(_lines(rig, second, 1))
    rig.store.append_log(_lines(rig, first, 1, 2))

    assert rig.store.log(first.job_id, None, 10) == _lines(rig, first, 1, 2) + _lines(rig, second, 1)


def test_a_repeat_changes_nothing(rig: Rig) -> None:
    claim = rig.start()
    rig.store.append_log(_lines(rig, claim, 1, 2))
    before = rig.everything()
    other_text = [line._replace(message="changed") for line in _lines(rig, claim, 1)]
    rig.store.append_log(_lines(rig, claim, 1, 2) + other_text)

    assert rig.everything() == before


def test_a_line_whose_neighbour_is_there_already_is_kept(rig: Rig) -> None:
    claim = rig.start()
    rig.store.append_log(_lines(rig, claim, 1))
    rig.store.append_log(_lines(rig, claim, 1, 2))

    assert rig.store.log(claim.job_id, None, 10) == _lines(rig, claim, 1, 2)


def test_lines_that_come_after_their_job_was_deleted_are_not_kept(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Completed())
    rig.store.delete(claim.job_id)
    before = rig.everything()
    rig.store.append_log(_lines(rig, claim, 1, 2))

    assert rig.everything() == before


def test_pages_of_lines_follow_each_other(rig: Rig) -> None:
    claim = rig.start()
    lines = _lines(rig, claim, *range(7))
    rig.store.append_log(lines)

    assert rig.store.log(claim.job_id, None, 3) == lines[:3]
    assert rig.store.log(claim.job_id, lines[2], 3) == lines[3:6]
    assert rig.store.log(claim.job_id, lines[5], 3) == lines[6:]
    assert rig.store.log(claim.job_id, lines[6], 3) == []


def test_a_job_has_only_its_own_lines(rig: Rig) -> None:
    rig.enqueue_many(2)
    one, two = rig.claim(2)
    rig.store.append_log(_lines(rig, one, 1) + _lines(rig, two, 1))

    assert rig.store.log(one.job_id, None, 10) == _lines(rig, one, 1)


def test_writing_no_lines_does_nothing(rig: Rig) -> None:
    rig.store.append_log([])

    assert rig.store.log(JobId(rig.ids.new()), None, 10) == []


def test_any_text_can_be_a_line(rig: Rig) -> None:
    claim = rig.start()
    [line] = _lines(rig, claim, 1)
    line = line._replace(message="'quoted' \"twice\" \u202e \U0001f680\n" + "x" * 10_000, fields=None)
    rig.store.append_log([line])

    assert rig.store.log(claim.job_id, None, 10) == [line]
