"""What may be a job's arguments and result, and what is refused with which words."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, Json, computed_field

from perdure.codec import MAX_BYTES, Codec
from perdure.errors import InvalidPayload, KindError

DEEP = "[" * 1000 + "]" * 1000


class Context:
    """Stands in for the worker's context class, which the codec is told."""


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: float
    y: float | None = None


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
    return Codec(function, function.__name__, Context)


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


class TestBinding:
    def test_keyword_arguments_are_taken_as_they_are(self):
        kwargs: dict[str, object] = {"to": "a"}
        assert codec(send).bind((), kwargs) is kwargs

    def test_positional_arguments_get_their_names(self):
        assert codec(send).bind(("a",), {"n": 1}) == {"to": "a", "n": 1}

    def test_the_context_is_not_an_argument(self):
        def handler(ctx: Context, to: str) -> None: ...

        subject = codec(handler)
        assert subject.bind(("a",), {}) == {"to": "a"}
        assert subject.takes_context

    def test_a_function_without_a_context_says_so(self):
        assert not codec(send).takes_context

    @pytest.mark.parametrize(
        ("args", "kwargs", "words"),
        [
            (("a", 1, 2), {}, "3 were given by position, at most 2 can be"),
            (("a",), {"to": "b"}, "'to' was given twice"),
            ((), {"n": 1}, "'to' is missing"),
            ((), {"to": "a", "subject": "b"}, "'subject' is not a parameter"),
        ],
    )
    def test_arguments_that_do_not_fit_by_name_are_refused(self, args, kwargs, words):
        with pytest.raises(InvalidPayload) as caught:
            codec(send).bind(args, kwargs)
        assert caught.value.code == "payload_invalid"
        assert words in str(caught.value)
        assert "send(to: str, n: int = ...)" in str(caught.value)


class TestEncoding:
    def test_only_what_was_passed_is_stored(self):
        assert codec(send).encode({"to": "a"}).payload == '{"to":"a"}'

    def test_values_are_converted_to_the_declared_types(self):
        assert codec(send).encode({"to": "a", "n": "7"}).values == {"to": "a", "n": 7}

    @pytest.mark.parametrize(
        "name", ["schema", "json", "copy", "self", "_x", "model_config", "class_", "été", "__x", "args", "arguments"]
    )
    def test_any_legal_parameter_name_works(self, name: str):
        namespace: dict[str, Any] = {}
        exec(f"def handler({name}: int, other: int = 0): ...", namespace)  # the name is what varies
        assert round_trip(namespace["handler"], **{name: 1}) == {name: 1}

    def test_a_wrong_type_names_argument_expectation_and_value(self):
        error = refused(send, to="a", n="many")
        assert error.code == "payload_invalid"
        assert "'n': Input should be a valid integer" in str(error)
        assert "got 'many'" in str(error)

    def test_every_wrong_argument_is_named(self):
        error = refused(send, n="many", subject="b")
        assert all(words in str(error) for words in ("'to' is missing", "'n': ", "'subject' is not a parameter"))

    def test_a_long_value_is_shortened_in_the_error(self):
        assert len(str(refused(send, to="a", n="x" * 100_000))) < 400

    def test_a_list_of_wrong_items_is_one_short_error(self):
        def handler(items: list[int]) -> None: ...

        error = refused(handler, items=["x"] * 1000)
        assert "'items.0'" in str(error)
        assert "and 995 more" in str(error)

    def test_a_payload_above_the_limit_is_refused_with_its_size(self):
        error = refused(anything, value="é" * MAX_BYTES)
        assert error.code == "payload_too_large"
        assert "2,097,164 bytes, the limit is 1,048,576" in str(error)
        assert "reference" in str(error)

    def test_a_payload_at_the_limit_is_taken(self):
        room = MAX_BYTES - len('{"value":""}')
        assert len(codec(anything).encode({"value": "x" * room}).payload) == MAX_BYTES
        assert refused(anything, value="x" * (room + 1)).code == "payload_too_large"

    def test_the_limit_can_be_set(self):
        with pytest.raises(InvalidPayload, match="payload_too_large"):
            Codec(send, "send", None, max_bytes=10).encode({"to": "a@example.org"})


class TestWhatJsonCannotHold:
    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": ({"b": x},)}, lambda x: {x}])
    def test_no_number_is_refused_wherever_it_hides(self, number, wrap):
        error = refused(anything, value=wrap(number))
        assert error.code == "payload_not_json"
        assert "'value" in str(error)
        assert "NaN or infinite" in str(error)

    def test_text_that_a_float_parameter_reads_as_no_number_is_refused(self):
        def handler(x: float) -> None: ...

        assert refused(handler, x="nan").code == "payload_not_json"

    def test_no_number_in_a_model_is_refused_although_pydantic_would_store_null(self):
        assert "'at.y' is NaN" in str(refused(points, at={"x": 1, "y": math.nan}))
        assert "'more.0.x' is NaN" in str(refused(points, at=Point(x=1), more=[Point(x=math.inf)]))
        assert "'value.y' is NaN" in str(refused(anything, value=Point(x=1, y=math.nan)))

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
        assert "same text" in str(refused(anything, value={1: "a", "1": "b"}))

    @pytest.mark.parametrize("function", [send, anything])
    def test_a_lone_surrogate_is_refused(self, function):
        error = refused(function, **{"to" if function is send else "value": "a\ud800"})
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
        error = refused(anything, value=10**5000)
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
            when: datetime, day: date, gap: timedelta, price: Decimal, id: UUID, colour: Colour, path: Path,
            pair: tuple[int, str], names: set[str], by_number: dict[int, str], mode: Literal["r", "w"],
            maybe: int | None, raw: Json[list[int]], short: Annotated[str, Field(max_length=3)],
        ) -> None: ...  # fmt: skip

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

    def test_a_type_defined_after_the_function_is_found_on_first_use(self):
        assert round_trip(later, at={"x": 1}) == {"at": DefinedLater(x=1)}

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


class TestDecoding:
    @pytest.mark.parametrize("text", ["", "not json", '{"to":"a"', '{"to":"a"}x', '{"to":"\\ud800"}', DEEP])
    @pytest.mark.parametrize("secrets", [None, "{}"])
    def test_what_is_not_json_is_unreadable(self, text, secrets):
        with pytest.raises(InvalidPayload) as caught:
            codec(send).decode(text, secrets)
        assert caught.value.code == "payload_unreadable"

    @pytest.mark.parametrize("text", ["[]", "null", '{"n":1}', '{"to":"a","cc":1}', '{"to":"a","n":"x"}'])
    @pytest.mark.parametrize("secrets", [None, "{}"])
    def test_what_does_not_fit_is_invalid(self, text, secrets):
        with pytest.raises(InvalidPayload) as caught:
            codec(send).decode(text, secrets)
        assert caught.value.code == "payload_invalid"


class TestFingerprints:
    def test_the_order_of_arguments_and_keys_does_not_matter(self):
        subject = codec(send)
        one = subject.fingerprint('{"to": {"a": 1, "b": 2}, "n": 5}', None)
        assert one == subject.fingerprint('{"n":5,"to":{"b":2,"a":1}}', None)
        assert len(one) == 64

    def test_other_arguments_have_another_fingerprint(self):
        subject = codec(send)
        assert subject.fingerprint('{"to":"a"}', None) != subject.fingerprint('{"to":"a","n":5}', None)

    def test_secrets_count_and_where_they_are_kept_does_not(self):
        subject = codec(send)
        assert subject.fingerprint('{"to":"a"}', '{"n":1}') == subject.fingerprint('{"n":1,"to":"a"}', None)
        assert subject.fingerprint('{"to":"a"}', '{"n":1}') != subject.fingerprint('{"to":"a"}', '{"n":2}')

    def test_equal_sets_are_stored_alike_in_every_process(self):
        program = (
            "from perdure.codec import Codec\n"
            "def handler(declared: set[str], any): ...\n"
            "names = set('abcdefghij')\n"
            "print(Codec(handler, 'h').encode({'declared': names, 'any': [frozenset(names)]}).payload)"
        )
        texts = {run(program, PYTHONHASHSEED=str(seed)) for seed in (1, 2)}
        assert texts == {
            json.dumps({"declared": list("abcdefghij"), "any": [list("abcdefghij")]}, separators=(",", ":"))
        }


class TestResults:
    def test_a_result_comes_back_as_annotated(self):
        def handler() -> Point:
            return Point(x=1)

        subject = codec(handler)
        assert subject.decode_result(subject.encode_result(Point(x=1))) == Point(x=1)

    def test_an_async_function_returns_what_is_awaited(self):
        async def handler() -> date:
            return date(2024, 2, 29)

        subject = codec(handler)
        assert subject.encode_result(date(2024, 2, 29)) == '"2024-02-29"'
        assert subject.decode_result('"2024-02-29"') == date(2024, 2, 29)

    def test_without_an_annotation_a_result_is_plain_json(self):
        def handler(): ...

        subject = codec(handler)
        assert subject.decode_result(subject.encode_result({"a": (1, 2)})) == {"a": [1, 2]}

    def test_no_result_is_none(self):
        assert codec(send).encode_result(None) is None
        assert codec(send).decode_result(None) is None

    def test_a_type_pydantic_does_not_know_leaves_the_choice_to_the_value(self):
        def handler() -> Context:
            return Context()

        assert codec(handler).encode_result("text") == '"text"'

    @pytest.mark.parametrize("value", [b"x", [math.nan], object(), "\ud800", Point(x=math.inf)], ids=repr)
    def test_what_is_not_json_is_refused(self, value):
        with pytest.raises(InvalidPayload) as caught:
            codec(anything).encode_result(value)
        assert caught.value.code == "result_not_json"
        assert caught.value.__context__ is None

    def test_what_the_function_does_not_say_it_returns_is_refused(self):
        with pytest.raises(InvalidPayload, match="result_invalid"):
            codec(send).encode_result(5)
        with pytest.raises(InvalidPayload, match="result_invalid"):
            codec(send).decode_result("5")

    def test_a_stored_result_that_is_not_json_is_unreadable(self):
        with pytest.raises(InvalidPayload, match="result_unreadable"):
            codec(send).decode_result("x")

    def test_a_result_above_the_limit_is_refused(self):
        with pytest.raises(InvalidPayload, match=r"1,048,577 bytes.*result_too_large"):
            codec(send).encode_result("x" * (MAX_BYTES - 1))


class TestBuilding:
    def test_a_variable_number_of_arguments_cannot_be_a_job(self):
        def by_position(*rest: int) -> None: ...
        def by_name(**rest: int) -> None: ...

        for function, words in ((by_position, "*rest"), (by_name, "**rest")):
            with pytest.raises(KindError, match="kind_signature") as caught:
                codec(function)
            assert f" {words}," in str(caught.value)

    def test_an_annotation_that_names_nothing_is_refused(self):
        def handler(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(KindError, match=r"'Nowhere' is not defined.*kind_signature"):
            codec(handler)

    def test_a_type_pydantic_does_not_know_is_refused_by_parameter(self):
        def handler(a: int, b: Codec) -> None: ...

        with pytest.raises(KindError, match=r"'b' is .*kind_signature"):
            codec(handler)

    def test_a_context_that_is_not_first_is_refused(self):
        def handler(a: int, ctx: Context) -> None: ...

        with pytest.raises(KindError, match=r"'ctx': make that the first parameter.*kind_signature"):
            codec(handler)

    def test_a_context_imported_for_type_checkers_only_is_still_found(self):
        namespace: dict[str, Any] = {}
        exec("def handler(ctx: 'Context', a: int): ...", namespace)  # globals without the name
        assert codec(namespace["handler"]).takes_context

    def test_a_wrapped_function_is_read_through_its_wrapper(self):
        @wraps(send)
        def wrapper(*args, **kwargs):
            return send(*args, **kwargs)

        assert codec(wrapper).bind(("a",), {}) == {"to": "a"}

    def test_reading_signatures_loads_no_pydantic_and_the_codec_no_asyncio(self):
        program = (
            "import sys, perdure.signature\nprint('pydantic' in sys.modules)\n"
            "from perdure.codec import Codec\nCodec(lambda a: a, 'x').encode({'a': 1})\nprint('asyncio' in sys.modules)"
        )
        assert run(program).split() == ["False", "False"]


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
