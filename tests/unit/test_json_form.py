"""Which values JSON can hold, and that those come back as they were."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, Json, computed_field

from perdure.errors import InvalidPayload
from perdure.payload.codec import Codec


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: float
    y: float | None = None


class Open(BaseModel, extra="allow"):
    x: int


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    colour: Colour = Colour.RED

    @computed_field
    def twice(self) -> int:
        return self.number * 2


@dataclass
class Tree:
    name: str
    branches: "list[Tree]"


def send(to: str, n: int = 5) -> str:
    return f"{to} {n}"


def anything(value) -> Any:
    return value


def points(at: Point, more: list[Point] | None = None) -> None:
    """Takes a model with floats."""


def later(at: "DefinedLater") -> None:
    """Takes what the module defines further down."""


class DefinedLater(BaseModel):
    x: int


def codec(function: Callable[..., object]) -> Codec:
    return Codec(function, function.__name__, None)


def round_trip(function: Callable[..., object], **arguments: object) -> dict[str, Any]:
    subject = codec(function)
    stored = subject.encode(arguments)
    args, kwargs = subject.decode(stored.payload, stored.secrets)
    assert args == ()
    return kwargs


def refused(function: Callable[..., object], **arguments: object) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        codec(function).encode(arguments)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


class TestWhatJsonCannotHold:
    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": ({"b": x},)}, lambda x: {x}])
    def test_no_number_is_refused_wherever_it_hides(self, number, wrap):
        error = refused(anything, value=wrap(number))
        assert error.code == "payload_not_json"
        assert "'value" in str(error)
        assert "NaN or infinite" in str(error)

    def test_text_that_a_float_parameter_reads_as_no_number_is_refused(self):
        def handler(x: float = 0, exact: Decimal = Decimal(0)) -> None: ...

        assert refused(handler, x="nan").code == "payload_not_json"
        assert refused(handler, exact="NaN").code == "payload_not_json"

    def test_no_number_in_a_model_is_refused_although_pydantic_would_store_null(self):
        assert "'at.y' is NaN" in str(refused(points, at={"x": 1, "y": math.nan}))
        assert "'more.0.x' is NaN" in str(refused(points, at=Point(x=1), more=[Point(x=math.inf)]))
        assert "'value.y' is NaN" in str(refused(anything, value=Point(x=1, y=math.nan)))

    def test_no_number_in_a_field_the_model_did_not_declare_is_refused(self):
        def handler(at: Open) -> None: ...

        assert "'at.extra' is NaN" in str(refused(handler, at={"x": 1, "extra": math.nan}))

    def test_no_number_that_is_read_only_once_is_refused(self):
        assert "'value.0' is NaN" in str(refused(anything, value=iter([math.nan])))

    def test_the_words_nan_and_infinity_are_only_words(self):
        assert round_trip(anything, value=["NaN", "-Infinity"]) == {"value": ["NaN", "-Infinity"]}

    @pytest.mark.parametrize("data", [b"x", bytearray(b"x"), memoryview(b"x")])
    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": ({"b": x},)}])
    def test_bytes_are_refused_wherever_they_hide(self, data, wrap):
        error = refused(anything, value=wrap(data))
        assert error.code == "payload_not_json"
        assert "base64-encode it and pass the text" in str(error)

    def test_bytes_for_a_text_parameter_are_refused_although_pydantic_would_take_them(self):
        assert refused(send, to=b"a").code == "payload_not_json"

    @pytest.mark.parametrize("key", [b"x", (1, 2), frozenset({1})])
    def test_keys_that_are_no_text_are_refused(self, key):
        assert refused(anything, value={key: 1}).code == "payload_not_json"

    def test_two_keys_with_the_same_text_are_refused(self):
        def handler(value: dict[int | str, str]) -> None: ...

        assert "same text" in str(refused(anything, value={1: "a", "1": "b"}))
        assert "same text" in str(refused(handler, value={1: "a", "1": "b"}))

    @pytest.mark.parametrize("annotation", [str, Any, Annotated[str, Field(max_length=9)]])
    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [{x: x}]])
    def test_a_lone_surrogate_is_refused(self, annotation, wrap):
        def handler(text, beside=None) -> None: ...

        handler.__annotations__["text"] = annotation
        error = refused(handler, text="a\ud800", beside=wrap("a\ud800"))
        assert error.code == "payload_not_json"
        assert "surrogate" in str(error)
        str(error).encode()

    def test_an_object_pydantic_cannot_write_is_refused_by_name(self):
        error = refused(anything, value=[object()])
        assert error.code == "payload_not_json"
        assert "'value' cannot be written as JSON" in str(error)

    @pytest.mark.parametrize("value", [json.loads("[" * 300 + "]" * 300), {"a": json.loads("[" * 195 + "]" * 195)}])
    def test_nesting_too_deep_is_refused(self, value):
        error = refused(anything, value=value)
        assert error.code == "payload_not_json"
        assert "nested deeper" in str(error)

    def test_a_value_that_holds_itself_is_refused(self):
        loop: list[object] = []
        loop.append(loop)
        assert "holds itself" in str(refused(anything, value=loop))

    def test_a_chain_of_models_too_deep_to_be_read_is_refused(self):
        def handler(tree: Tree) -> None: ...

        tree = Tree("leaf", [])
        for _ in range(110):
            tree = Tree("branch", [tree])
        assert refused(handler, tree=tree).code == "payload_not_json"

    def test_a_number_too_long_to_be_read_is_refused(self):
        def handler(value: int) -> None: ...

        for function in (handler, anything):
            error = refused(function, value=10**5000)
            assert error.code == "payload_not_json"
            assert "'value' holds a number of more than 4300 digits" in str(error)

    def test_a_validator_that_changes_the_value_each_time_is_refused(self):
        def handler(n: Annotated[int, AfterValidator(lambda n: n + 1)]) -> None: ...

        assert "'n' reads back from JSON as another value" in str(refused(handler, n=1))


class TestRoundTrips:
    @pytest.mark.parametrize(
        "value",
        [
            *[
                "",
                "\0",
                "\u202eעברית\u202c",
                'it\'s "quoted" \\ `so`',
                "👩‍👩‍👧",
                "x" * 100_000,
                "\x7f\x1b[0m",
                "\ufeff",
            ],
            *[0, -1, 2**63, 10**4000, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2],
            *[None, True, [], {}, [[]], {"": {}}, {"a.b": {"$ref": [1]}, "é\0": None}],
            json.loads("[" * 100 + "]" * 100),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_nasty_but_legal_values_come_back_as_they_were(self, value):
        back = round_trip(anything, value=value)["value"]
        assert back == value
        assert repr(back) == repr(value)

    def test_types_come_back_as_declared(self):
        def handler(
            *,
            when: datetime,
            day: date,
            gap: timedelta,
            price: Decimal,
            id: UUID,
            colour: Colour,
            path: Path,
            pair: tuple[int, str],
            names: set[str],
            by_number: dict[int, str],
            mode: Literal["r", "w"],
            maybe: int | None,
            raw: Json[list[int]],
            short: Annotated[str, Field(max_length=3)],
        ) -> None: ...

        arguments: dict[str, Any] = {
            "when": datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
            "day": date(2024, 2, 29),
            "gap": timedelta(days=-1, microseconds=1),
            "price": Decimal("1.10"),
            "id": UUID(int=7),
            "colour": Colour.RED,
            "path": Path("/a/b"),
            "pair": (1, "a"),
            "names": {"a", "b"},
            "by_number": {1: "one"},
            "mode": "r",
            "maybe": None,
            "short": "abc",
        }
        assert round_trip(handler, **arguments, raw="[1, 2]") == {**arguments, "raw": [1, 2]}

    def test_a_model_comes_back_by_its_aliases_and_without_computed_fields(self):
        def handler(order: Order) -> None: ...

        order = Order(orderNumber=3)
        assert round_trip(handler, order=order) == {"order": order}
        assert codec(handler).encode({"order": order}).payload == '{"order":{"orderNumber":3,"colour":"red"}}'

    def test_text_for_a_bytes_parameter_comes_back_as_bytes(self):
        def handler(data: bytes) -> None: ...

        assert round_trip(handler, data="é") == {"data": "é".encode()}
        assert round_trip(handler, data="aGk=") == {"data": b"aGk="}

    def test_a_validator_may_change_the_type_as_long_as_it_reads_back(self):
        def handler(n: Annotated[int, AfterValidator(str)]) -> None: ...

        assert round_trip(handler, n=5) == {"n": "5"}

    def test_a_type_defined_after_the_function_is_found_on_first_use(self):
        assert round_trip(later, at={"x": 1}) == {"at": DefinedLater(x=1)}

    def test_what_can_be_read_only_once_is_stored_whole(self):
        assert codec(anything).encode({"value": (n for n in [3, 4])}).payload == '{"value":[3,4]}'

    def test_positional_only_arguments_are_passed_by_position(self):
        def handler(a: int, b: int = 2, /, c: int = 3) -> None: ...

        subject = codec(handler)
        assert subject.bind((1, 5), {"c": 4}) == {"a": 1, "b": 5, "c": 4}
        assert subject.decode('{"c":4,"b":5,"a":1}', None) == ((1, 5), {"c": 4})
        assert subject.decode('{"a":1}', None) == ((1,), {})

    def test_a_positional_only_argument_left_out_before_another_gets_its_default(self):
        def handler(a: int = 1, b: int = 2, /) -> None: ...

        assert codec(handler).decode('{"b":5}', None) == ((1, 5), {})

    @settings(max_examples=200, deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        )
    )
    def test_every_json_value_comes_back_as_it_was(self, value):
        assert round_trip(anything, value=value) == {"value": value}
