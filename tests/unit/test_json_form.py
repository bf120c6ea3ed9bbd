"""Which values JSON can hold, and that those come back as they were."""

import json
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, Json, computed_field

from perdure.errors import InvalidPayload
from perdure.payload.codec import Codec, Secret


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
        def handler(values: list[int]) -> None: ...

        assert codec(handler).encode({"values": (n for n in [3, 4])}).payload == '{"values":[3,4]}'

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


class Level(StrEnum):
    LOW = "low"


class Word(str):
    __slots__ = ()


def loose_list(value: list) -> None: ...
def loose_dict(value: dict | None = None) -> None: ...
def list_of_any(value: list[Any]) -> None: ...
def dict_of_any(value: dict[str, Any]) -> None: ...
def dict_with_any_keys(value: dict[Any, int]) -> None: ...
def pair_of_any(value: tuple[Any, int]) -> None: ...
def secret_any(value: Annotated[Any, Secret]) -> None: ...
def any_object(value: object) -> None: ...


CHANGED: list[Any] = [
    (1, 2),
    {1: "a"},
    {None: "a"},
    {True: "a"},
    {"a": (1, 2)},
    [[1, {"b": (2,)}]],
    {1, 2},
    frozenset({"a"}),
    deque([1]),
    datetime(2026, 1, 1, tzinfo=UTC),
    date(2026, 1, 1),
    timedelta(seconds=1),
    Decimal("1.5"),
    UUID(int=1),
    Colour.RED,
    Level.LOW,
    Word("a"),
    Path("/tmp/a"),
    Point(x=1),
    Tree("a", []),
    OrderedDict(a=1),
    (n for n in [1]),
]


class TestWhereNoTypeIsDeclared:
    @pytest.mark.parametrize("value", CHANGED, ids=repr)
    def test_what_json_gives_back_as_something_else_is_refused(self, value):
        error = refused(anything, value=value)
        assert error.code == "payload_untyped"
        assert "annotate the parameter" in str(error)

    @pytest.mark.parametrize(
        ("function", "value"),
        [
            (loose_list, [(1, 2)]),
            (loose_dict, {1: "a"}),
            (list_of_any, [{1: 2}]),
            (dict_of_any, {"a": (1,)}),
            (dict_with_any_keys, {1: 2}),
            (pair_of_any, ((1,), 2)),
            (any_object, (1,)),
            (secret_any, (1,)),
        ],
        ids=lambda part: getattr(part, "__name__", repr(part)),
    )
    def test_so_it_is_inside_of_containers_and_secrets(self, function, value):
        assert refused(function, value=value).code == "payload_untyped"

    @pytest.mark.parametrize(
        ("function", "value"),
        [
            (loose_list, (1, 2)),  # `list` is what it says: a tuple becomes one, as pydantic does it
            (loose_dict, None),
            (pair_of_any, ({"a": [1]}, 2)),
            (dict_with_any_keys, {"a": 1}),
        ],
        ids=lambda part: getattr(part, "__name__", repr(part)),
    )
    def test_what_a_container_declares_counts(self, function, value):
        assert round_trip(function, value=value)["value"] == (list(value) if function is loose_list else value)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text("aé"),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
            max_leaves=8,
        )
    )
    def test_what_is_taken_comes_back_as_it_was(self, value):
        def same(one: Any, other: Any) -> bool:
            if type(one) is not type(other):
                return False
            if isinstance(one, dict):
                return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
            if isinstance(one, list):
                return len(one) == len(other) and all(map(same, one, other))
            return bool(one == other)

        assert same(round_trip(anything, value=value)["value"], value)


ODD = timezone(timedelta(minutes=19, seconds=32))
EVEN = timezone(-timedelta(minutes=19))
NOON = datetime(1930, 6, 1, 12)


class Meeting(BaseModel):
    at: datetime


@dataclass
class Trip:
    stops: list[datetime]


def meets(at: datetime | None = None, clock: time | None = None, many: list[datetime] | None = None) -> None: ...
def meets_in_a_model(meeting: Meeting | None = None, trip: Trip | None = None) -> None: ...
def meets_in_secret(at: Annotated[datetime, Secret] | pydantic.Secret[datetime]) -> None: ...
def meets_as_told() -> Any: ...


class TestTimes:
    @pytest.mark.parametrize(
        ("function", "make"),
        [
            (meets, lambda zone: {"at": NOON.replace(tzinfo=zone)}),
            (meets, lambda zone: {"clock": time(12, tzinfo=zone)}),
            (meets, lambda zone: {"many": [NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=zone)]}),
            (meets_in_a_model, lambda zone: {"meeting": Meeting(at=NOON.replace(tzinfo=zone))}),
            (meets_in_a_model, lambda zone: {"meeting": {"at": NOON.replace(tzinfo=zone)}}),
            (meets_in_a_model, lambda zone: {"trip": Trip([NOON.replace(tzinfo=zone)])}),
            (meets_in_secret, lambda zone: {"at": NOON.replace(tzinfo=zone)}),
            (meets_in_secret, lambda zone: {"at": pydantic.Secret[datetime](NOON.replace(tzinfo=zone))}),
        ],
    )
    def test_a_utc_offset_with_seconds_is_refused_and_others_come_back(self, function, make):
        assert refused(function, **make(ODD)).code == "payload_not_json"
        round_trip(function, **make(EVEN))

    def test_so_it_is_in_results(self):
        with pytest.raises(InvalidPayload, match=r"offset with seconds .*result_not_json"):
            codec(meets_as_told).encode_result([NOON.replace(tzinfo=ODD)])

    @given(st.datetimes(timezones=st.timezones()))
    def test_an_instant_that_is_taken_comes_back_as_the_same(self, at):
        try:
            again = round_trip(meets, at=at)["at"]
        except InvalidPayload:
            assert at.utcoffset() % timedelta(minutes=1)
        else:
            assert again.astimezone(UTC) == at.astimezone(UTC)
