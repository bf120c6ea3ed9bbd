"""A job's arguments and result on their way to the database and back."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.errors import InvalidPayload
from perdure.payload.codec import MAX_BYTES, Codec

DEEP = "[" * 1000 + "]" * 1000


class Context:
    """Stands in for the worker's context class, which the codec is told."""


class Point(BaseModel):
    x: float
    y: float | None = None


def send(to: str, n: int = 5) -> str:
    return f"{to} {n}"


def anything(value) -> Any:
    return value


def codec(function: Callable[..., object]) -> Codec:
    return Codec(function, function.__name__, Context)


def refused(function: Callable[..., object], **arguments: object) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        codec(function).encode(arguments)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


class TestEncoding:
    def test_only_what_was_passed_is_stored(self):
        assert codec(send).encode({"to": "a"}).payload == '{"to":"a"}'

    def test_values_are_converted_to_the_declared_types(self):
        assert codec(send).encode({"to": "a", "n": "7"}).payload == '{"to":"a","n":7}'

    @pytest.mark.parametrize(
        "function",
        [
            lambda schema: schema,
            lambda json: json,
            lambda copy: copy,
            lambda self: self,
            lambda _x: _x,
            lambda model_config: model_config,
            lambda class_: class_,
            lambda été: été,  # noqa: PLC2401 - legal, so it must work
            lambda arguments: arguments,
            lambda __pydantic_config__: __pydantic_config__,
        ],
        ids=lambda function: function.__code__.co_varnames[0],
    )
    def test_any_legal_parameter_name_works(self, function):
        subject = codec(function)
        stored = subject.encode(subject.bind(({"a": 1},), {}))
        args, kwargs = subject.decode(stored.payload, None)
        assert function(*args, **kwargs) == {"a": 1}

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
            "from perdure.payload.codec import Codec\n"
            "def declared(names: set[str]): ...\n"
            "def inside(names: list[set[str]] | set[str]): ...\n"
            "for function in (declared, inside):\n"
            "    print(Codec(function, 'h').encode({'names': set('abcdefghij')}).payload)"
        )
        text = json.dumps({"names": list("abcdefghij")}, separators=(",", ":"))
        for seed in (1, 2):
            assert run(program, PYTHONHASHSEED=str(seed)).split() == [text, text]


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


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
