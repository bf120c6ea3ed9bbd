"""Jobs to be enqueued under a name. Protocol `TemplateOperations`."""

from __future__ import annotations

from typing import Any

from perdure.errors import TemplateError
from perdure.job.model import Origin
from perdure.job.reports import Completed, Failed
from perdure.store.rows import NewTemplate, TemplateRow
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, Rig


def _put(rig: Rig, new: NewTemplate, expect_version: int | None = None) -> TemplateRow:
    row = rig.store.put_template(new, rig.now, expect_version)
    assert row is not None, "there is no such template"
    return row


def test_a_new_template_is_there_as_it_was_given(rig: Rig) -> None:
    new = rig.new_template(rig.key("t"), secrets='{"token":"s3"}')
    made = _put(rig, new)

    now = rig.now
    assert made == TemplateRow(new.id, new.name, 1, now, now, None, 1, *new[2:], now)
    assert rig.store.template(new.name) == made
    assert rig.store.template_by_id(new.id, 1) == made
    assert made in rig.store.templates()


def test_another_content_is_the_next_version_and_those_before_stay(rig: Rig) -> None:
    first = _put(rig, rig.new_template(rig.key("t")))
    rig.clock.advance(seconds=5)
    second = _put(rig, rig.new_template(rig.key("t"), '{"n":2}', '{"token":"s3"}'))

    assert (second.id, second.version, second.latest) == (first.id, 2, 2)
    assert (second.created_at, second.updated_at, second.written_at) == (first.created_at, rig.now, rig.now)
    assert rig.store.template(first.name) == second
    kept = first._replace(latest=2, updated_at=rig.now)
    assert rig.store.template(first.name, 1) == kept
    assert rig.store.template_by_id(first.id, 1) == kept
    assert rig.store.template_by_id(first.id) == second
    assert rig.store.template_versions(first.name) == [second, kept]


def test_the_same_again_changes_nothing(rig: Rig) -> None:
    new = rig.new_template(rig.key("t"), '{"a":1,"b":[2]}', '{"x":"1","y":"2"}')
    made = _put(rig, new)
    before = rig.everything()
    rig.clock.advance(seconds=5)

    again = new._replace(id=rig.ids.new(), payload='{"b": [2], "a": 1}', secrets='{"y":"2","x":"1"}')
    assert _put(rig, again) == made
    assert _put(rig, again, expect_version=1) == made
    assert rig.everything() == before


@each(
    ("kind", "other"),
    ("kind_version", 2),
    ("payload", '{"a":true,"b":[2]}'),
    ("secrets", None),
    ("secrets", '{"x":"1","y":"3"}'),
    ("plan", '{"queue":"other"}'),
    ("description", None),
)
def test_every_part_of_the_content_counts(rig: Rig, part: str, value: Any) -> None:
    new = rig.new_template(rig.key("t"), '{"a":1,"b":[2]}', '{"x":"1","y":"2"}')
    _put(rig, new)
    changed = NewTemplate(**(new._asdict() | {part: value}))

    assert _put(rig, changed).version == 2
    assert _put(rig, changed).version == 2
    assert _put(rig, new).version == 3


def test_whoever_expects_another_version_is_refused_and_nothing_is_written(rig: Rig) -> None:
    name = rig.key("t")
    _put(rig, rig.new_template(name))
    assert _put(rig, rig.new_template(name, '{"n":2}'), expect_version=1).version == 2
    before = rig.everything()

    with raises(TemplateError, "version_changed"):
        _put(rig, rig.new_template(name, '{"n":3}'), expect_version=1)
    with raises(TemplateError, "version_changed"):
        _put(rig, rig.new_template(name, '{"n":3}'), expect_version=3)
    assert rig.everything() == before


def test_a_version_is_expected_of_templates_that_exist_only(rig: Rig) -> None:
    before = rig.everything()

    assert rig.store.put_template(rig.new_template(rig.key("t")), rig.now, expect_version=1) is None
    assert rig.everything() == before


def test_what_is_not_there_is_not_found(rig: Rig) -> None:
    name = rig.key("t")
    assert rig.store.template(name) is None
    assert rig.store.template_versions(name) == []
    assert rig.store.archive_template(name, rig.now, rig.now) is None
    assert rig.store.rename_template(name, rig.key("other"), rig.now) is None

    made = _put(rig, rig.new_template(name))
    assert rig.store.template(name, 2) is None
    assert rig.store.template_by_id(made.id, 2) is None
    assert rig.store.template_by_id(rig.ids.new(), 1) is None


def test_templates_are_listed_by_name_at_their_newest_version(rig: Rig) -> None:
    for name in ("b", "a", "c"):
        _put(rig, rig.new_template(rig.key(name)))
    _put(rig, rig.new_template(rig.key("b"), '{"n":2}'))
    rig.store.archive_template(rig.key("c"), rig.now, rig.now)

    mine = [row for row in rig.store.templates() if row.name.endswith(rig.mark)]
    assert [(row.name, row.version) for row in mine] == [(rig.key("a"), 1), (rig.key("b"), 2), (rig.key("c"), 1)]


def test_an_archived_template_is_not_changed_until_it_is_restored(rig: Rig) -> None:
    name, since = rig.key("t"), rig.now
    made = _put(rig, rig.new_template(name))
    assert rig.store.archive_template(name, since, since) == made._replace(archived_at=since)
    rig.clock.advance(seconds=5)
    assert rig.store.archive_template(name, rig.now, rig.now) == made._replace(archived_at=since)

    before = rig.everything()
    for changed in ('{"n":1}', '{"n":2}'):
        with raises(TemplateError, "template_archived"):
            _put(rig, rig.new_template(name, changed))
    assert rig.everything() == before

    assert rig.store.archive_template(name, None, rig.now) == made._replace(updated_at=rig.now)
    assert _put(rig, rig.new_template(name, '{"n":2}')).version == 2


def test_a_renamed_template_is_the_same_one(rig: Rig) -> None:
    made = _put(rig, rig.new_template(rig.key("t")))
    rig.clock.advance(seconds=5)

    renamed = rig.store.rename_template(made.name, rig.key("other"), rig.now)
    assert renamed == made._replace(name=rig.key("other"), updated_at=rig.now)
    assert rig.store.template(made.name) is None
    assert rig.store.template_by_id(made.id, 1) == renamed
    assert _put(rig, rig.new_template(made.name)).id != made.id


def test_a_name_that_is_taken_is_not_given_to_another(rig: Rig) -> None:
    for name in ("t", "other"):
        _put(rig, rig.new_template(rig.key(name)))
    rig.store.archive_template(rig.key("other"), rig.now, rig.now)
    before = rig.everything()

    with raises(TemplateError, "template_taken"):
        rig.store.rename_template(rig.key("t"), rig.key("other"), rig.now)
    assert rig.everything() == before
    assert rig.store.rename_template(rig.key("t"), rig.key("t"), rig.now) == rig.store.template(rig.key("t"))
    assert rig.everything() == before


def test_a_refusal_takes_nothing_else_of_its_transaction_with_it(rig: Rig) -> None:
    for name in ("t", "other"):
        _put(rig, rig.new_template(rig.key(name)))
    with rig.store.transaction():
        job_id = rig.enqueue()
        with raises(TemplateError, "template_taken"):
            rig.store.rename_template(rig.key("t"), rig.key("other"), rig.now)
        _put(rig, rig.new_template(rig.key("t"), '{"n":2}'))

    assert rig.in_order() == [job_id]
    assert len(rig.store.template_versions(rig.key("t"))) == 2


def test_a_job_says_which_version_of_which_template_it_was_made_from(rig: Rig) -> None:
    made = _put(rig, rig.new_template(rig.key("t")))
    new = rig.new(as_new_job=True)._replace(origin=Origin(made.id, made.version))
    [job] = rig.store.enqueue([new])
    _put(rig, rig.new_template(rig.key("t"), '{"n":2}'))

    assert rig.job(new.id) == job
    assert (job.row.template_id, job.row.template_version) == (made.id, 1)
    assert (rig.row(new.id).template_id, rig.row(new.id).template_version) == (made.id, 1)


def test_retries_as_new_jobs_keep_the_template(rig: Rig) -> None:
    made = _put(rig, rig.new_template(rig.key("t")))
    new = rig.new(as_new_job=True)._replace(origin=Origin(made.id, made.version))
    rig.store.enqueue([new])
    rig.finish(rig.claim_one(), Failed(BROKEN))
    successor = rig.claim_one()
    rig.finish(successor, Completed())
    again = rig.store.retry_as_new(successor.job_id, type(new.id)(rig.ids.new()), rig.now)

    for job in (rig.job(successor.job_id), again):
        assert (job.row.template_id, job.row.template_version) == (made.id, 1)
