"""Templates and schedules keep a plan as text; releases older and newer than the one that wrote it read it."""

import json

import pytest

from perdure import Retry
from perdure.job.model import Plan, plan_json, plan_of
from perdure.options import Options

OPTIONS = Options(
    priority=2,
    queue="räume",
    tags=("nightly", "ü"),
    principal="alice",
    params={"depth": [1, {"a": None}]},
    retry=Retry(max_attempts=7, as_new_job=True),
    timeout=2.5,
    conflict="return",
)


@pytest.mark.parametrize("options", [Options(), OPTIONS], ids=["defaults", "everything"])
def test_a_plan_comes_back_as_it_was(options: Options):
    plan = options.plan(("send", "mail"), 3, "shop")
    assert plan_of(plan_json(plan)) == plan
    assert hash(plan_of(plan_json(plan))) == hash(plan)  # lists would not be hashable


def test_what_only_a_newer_release_knows_is_ignored():
    plan = OPTIONS.plan(("send",), 1, "shop")
    assert plan_of(json.dumps(json.loads(plan_json(plan)) | {"colour": "red"})) == plan


@pytest.mark.parametrize("field", sorted(Plan._field_defaults))
def test_what_an_older_release_did_not_know_gets_its_default(field: str):
    plan = Options().plan(("send",), 1, "shop")
    stored = json.loads(plan_json(plan))
    assert stored.pop(field) is True
    assert plan_of(json.dumps(stored)) == plan._replace(**{field: Plan._field_defaults[field]})


@pytest.mark.parametrize("text", ["", "[]", "null", '"send"', "{", "NaN"])
def test_a_text_that_is_no_plan_is_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        plan_of(text)


def test_a_plan_without_a_kind_or_queue_is_refused_by_their_names():
    stored = json.loads(plan_json(Options().plan(("send",), 1, "shop")))
    del stored["kind"], stored["queue"]
    with pytest.raises(ValueError, match="has no kind, queue"):
        plan_of(json.dumps(stored))
