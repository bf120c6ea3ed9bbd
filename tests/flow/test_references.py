"""What a job takes from others, as data: references, conditions, and the words about them. No database."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from perdure import PerdureError, Planned, each
from perdure.flow.planned import (
    Condition,
    Reference,
    Summary,
    condition_of,
    first_that_holds,
    refers,
    tree_of,
    with_values,
)
from perdure.ids import FlowId
from perdure.job.flow import FlowRow, Source
from perdure.job.references import (
    Unknown,
    edges_of,
    filled,
    has_condition,
    holds,
    refs_text,
    sources_of,
    why_not,
    with_condition,
)

A, B = bytes([1] * 16), bytes([2] * 16)
PARTS = FlowId(bytes([3] * 16))
a: Planned[Any] = Planned(A, "measure")
b: Planned[Any] = Planned(B, "fetch")
parts = Summary(PARTS, "parts")


def row(**counts: int) -> FlowRow:
    values: dict[str, Any] = dict.fromkeys(FlowRow._fields, 0) | {"id": PARTS, "name": "parts", **counts}
    return FlowRow(**values)


def found(of_a: object, of_b: object = None) -> dict[bytes, Source]:
    """Both have completed with these results."""
    return {A: Source("completed", json.dumps(of_a)), B: Source("completed", json.dumps(of_b))}


def when(condition: Any) -> str:
    text = refs_text({}, condition_of(condition).tree)
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("condition", "result", "expected"),
    [
        (a.result > 10, 11, True),
        (a.result > 10, 10, False),
        (a.result >= 10, 10, True),
        (a.result < 10, 9, True),
        (a.result <= 10, 11, False),
        (a.result == "x", "x", True),
        (a.result != "x", "x", False),
        (a.result == None, None, True),  # noqa: E711 - a condition, not a comparison
        (a.result["size"] > 1, {"size": 2}, True),
        (a.result["rows"][-1]["id"] == 7, {"rows": [{"id": 1}, {"id": 7}]}, True),
        ((a.result > 1) & (a.result < 5), 3, True),
        ((a.result > 1) & (a.result < 5), 6, False),
        ((a.result < 1) | (a.result > 5), 6, True),
        (~(a.result > 5), 5, True),
        (~(a.result > 5), 6, False),
        (a.result, True, True),
        (a.result, [], False),
        (~a.result, 0, True),
        (a.result & (a.result > 3), 4, True),
        (a.outcome.state == "completed", 1, True),
    ],
)
def test_a_condition_says_what_python_would_say(condition: Any, result: object, expected: bool) -> None:
    assert holds(when(condition), found(result)) is expected


@pytest.mark.parametrize(
    ("condition", "result"),
    [
        (a.result["size"] > 1, {"other": 2}),
        (a.result[3] > 1, [1]),
        (a.result["size"] > 1, None),
        (a.result > 1, "text"),
        (~(a.result["size"] > 1), {}),
        ((a.result["size"] > 1) & (a.result != None), {}),  # noqa: E711
    ],
)
def test_a_condition_that_cannot_be_evaluated_does_not_hold(condition: Any, result: object) -> None:
    assert holds(when(condition), found(result)) is False


def test_what_does_not_matter_need_not_be_known() -> None:
    either = (a.result["missing"] > 1) | (a.result["size"] > 1)
    assert holds(when(either), found({"size": 2}))


def test_a_source_that_is_gone_meets_no_condition() -> None:
    assert not holds(when(a.result == None), {})  # noqa: E711
    assert not holds(when(a.result == None), {A: Source(None)})  # noqa: E711


def test_two_results_can_be_compared() -> None:
    refs = when(a.result > b.result)
    assert holds(refs, found(5, 4))
    assert not holds(refs, found(3, 4))
    assert sources_of(refs) == {A, B}


def test_a_job_without_a_condition_may_always_run() -> None:
    refs = refs_text({"x": tree_of(a.result)}, None)
    assert refs is not None
    assert not has_condition(refs)
    assert holds(refs, {})
    assert why_not(refs, {}) == ""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (parts.failed <= 3, True),
        (parts.failed <= 1, False),
        (parts.success_rate >= 0.95, False),
        (parts.success_rate >= 0.5, True),
        (parts.total == 10, True),
        ((parts.completed > 3) & (parts.skipped == 4), True),
    ],
)
def test_a_condition_can_ask_for_the_counts_of_a_flow(condition: Any, expected: bool) -> None:
    known: dict[bytes, Source] = {PARTS: Source("failed", counts=row(total=10, completed=4, failed=2, skipped=4))}
    assert holds(when(condition), known) is expected


def test_a_flow_of_which_nothing_had_to_be_done_succeeded() -> None:
    assert holds(when(parts.success_rate == 1), {PARTS: Source("completed", counts=row(total=2, skipped=2))})


# -- choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "chosen"), [(200, 0), (50, 1), (5, 2), ("text", 2)])
def test_of_several_choices_the_first_that_holds_is_taken(size: object, chosen: int) -> None:
    choices = first_that_holds([a.result > 100, a.result > 10])
    assert [holds(when(one), found(size)) for one in choices] == [number == chosen for number in range(3)]


# -- the words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "result", "said"),
    [
        (a.result > 10, 7, "measure.result > 10, but it is 7"),
        (a.result["size"] == 1, {}, "measure.result['size'] is not there: there is no 'size' in it"),
        (a.result > 10, "x", "measure.result > 10, but 'x' and 10 cannot be compared"),
        (~(a.result > 10), 11, "measure.result > 10 holds"),
        ((a.result > 1) & (a.result > 10), 7, "measure.result > 10, but it is 7"),
        ((a.result > 8) | (a.result < 5), 7, "measure.result > 8, but it is 7; measure.result < 5, but it is 7"),
        (a.result, False, "measure.result, but it is False"),
    ],
)
def test_why_a_condition_does_not_hold_is_said_in_plain_words(condition: Any, result: object, said: str) -> None:
    text = why_not(when(condition), found(result))
    assert text.startswith("its condition does not hold: ")
    assert text.endswith(said)


def test_the_words_name_the_count_of_a_flow() -> None:
    known: dict[bytes, Source] = {PARTS: Source("failed", counts=row(total=10, failed=4))}
    assert why_not(when(parts.failed <= 3), known) == "its condition does not hold: parts.failed <= 3, but it is 4"


# -- arguments -------------------------------------------------------------------------------------------------------


def taking(**arguments: Any) -> str:
    text = refs_text({name: tree_of(value) for name, value in arguments.items()}, None)
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (a.result, {"size": 3, "of": [1]}),
        (a.result["of"][0], 1),
        ([a.result["size"], 9, b.result], [3, 9, None]),
        ({"x": a.result["size"], "of": "no id"}, {"x": 3, "of": "no id"}),
        (
            a.outcome,
            {"state": "completed", "result": {"size": 3, "of": [1]}, "error_type": None, "error": None},
        ),
        (a.outcome.state, "completed"),
    ],
)
def test_an_argument_is_filled_with_the_result_of_another(argument: Any, expected: object) -> None:
    refs = taking(rows=argument)
    payload = filled('{"day":"1"}', refs, found({"size": 3, "of": [1]}))
    assert json.loads(payload) == {"day": "1", "rows": expected}


@pytest.mark.parametrize("known", [{}, found({"other": 1})])
def test_an_argument_that_is_not_there_is_an_error(known: dict[bytes, Source]) -> None:
    with pytest.raises(Unknown, match=r"measure.result\['size'\]"):
        filled("{}", taking(rows=a.result["size"]), known)


def test_a_result_needs_success_and_an_outcome_any_end() -> None:
    assert edges_of(taking(x=a.result, how=b.outcome)) == {A: "success", B: "end"}
    assert edges_of(taking(x=b.result, how=b.outcome)) == {B: "success"}
    assert edges_of(when((parts.failed < 3) & (a.result > 1))) == {PARTS: "end", A: "success"}


def test_a_condition_is_added_to_arguments() -> None:
    refs = with_condition(taking(x=a.result), condition_of(b.result > 1).tree)
    assert refs is not None
    assert has_condition(refs)
    assert sources_of(refs) == {A, B}
    assert with_condition("unchanged", None) == "unchanged"


def test_what_a_user_gave_is_never_taken_for_a_reference() -> None:
    refs = when(a.result == {"of": B.hex(), "get": "result"})
    assert sources_of(refs) == {A}
    assert holds(refs, found({"of": B.hex(), "get": "result"}))


def test_each_is_replaced_by_the_value_at_any_depth() -> None:
    arguments = with_values({"row": each, "id": each["id"], "many": [each["id"], 5], "same": 1}, each={"id": 7})
    assert arguments == {"row": {"id": 7}, "id": 7, "many": [7, 5], "same": 1}


# -- misuse ----------------------------------------------------------------------------------------------------------

MISUSE: list[tuple[str, Callable[[], object], str]] = [
    ("if of a condition", lambda: bool(a.result > 1), "condition_invalid"),
    ("and instead of &", lambda: (a.result > 1) and (a.result < 5), "condition_invalid"),
    ("if of a result", lambda: bool(a.result), "reference_invalid"),
    ("a result in a text", lambda: f"{a.result}", "reference_invalid"),
    ("a loop over a result", lambda: list(a.result), "reference_invalid"),
    ("a part by a float", lambda: a.result[1.5], "reference_invalid"),
    ("a comparison with an object", lambda: a.result == object(), "not_json"),
    ("a comparison with infinity", lambda: a.result > math.inf, "not_json"),
    ("& with a plain value", lambda: (a.result > 1) & 5, "condition_invalid"),
    ("a plain value as a condition", lambda: condition_of(True), "condition_invalid"),
    ("each outside of wf.map", lambda: tree_of(each), "reference_invalid"),
    ("a job instead of its result", lambda: refers({"rows": [a]}), "reference_invalid"),
    ("an object beside a result", lambda: tree_of([a.result, object()]), "not_json"),
]


@pytest.mark.parametrize(("misuse", "code"), [row[1:] for row in MISUSE], ids=[row[0] for row in MISUSE])
def test_what_cannot_be_meant_is_refused(misuse: Callable[[], object], code: str) -> None:
    with pytest.raises(PerdureError) as caught:
        misuse()
    assert caught.value.code == code


def test_a_result_has_no_attributes_before_it_is_known() -> None:
    with pytest.raises(AttributeError, match=r"take a part of it with \[\]"):
        _ = a.result.size
    with pytest.raises(AttributeError, match="success_rate"):
        _ = parts.sucess_rate  # type: ignore[attr-defined]


def test_a_reference_and_a_condition_are_data_without_code() -> None:
    assert isinstance(a.result, Reference)
    assert isinstance(a.result > 1, Condition)
    assert json.loads(when(a.result["size"] > 1)) == {
        "when": {
            "left": {"of": A.hex(), "get": "result", "at": ["size"], "name": "measure"},
            "is": ">",
            "value": 1,
        }
    }
