"""Which functions can be a kind, and which arguments fit them by name."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Annotated, Any

import pytest
from pydantic import Field

from perdure.errors import InvalidPayload, KindError
from perdure.payload.codec import Codec


class Context:
    """Stands in for the worker's context class, which the codec is told."""


def send(to: str, n: int = 5) -> str:
    return f"{to} {n}"


def codec(function: Callable[..., object]) -> Codec:
    return Codec(function, function.__name__, Context)


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

    def test_a_context_without_its_annotation_is_taken_for_an_argument_and_the_error_says_what_to_write(self):
        def handler(ctx, to: str) -> None: ...
        def other(ctx: int, to: str) -> None: ...

        hint = "For the job's context write ctx: JobContext."
        with pytest.raises(InvalidPayload) as caught:
            codec(handler).bind((), {"to": "a"})
        assert str(caught.value).removesuffix(" [payload_invalid]").endswith(f"Expected handler(ctx, to: str). {hint}")
        for function in (other, send):
            with pytest.raises(InvalidPayload) as caught:
                codec(function).bind((), {})
            assert hint not in str(caught.value)

    @pytest.mark.parametrize(
        ("args", "kwargs", "words"),
        [
            (("a", 1, 2), {}, "at most 2 can be given by position, not 3"),
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

    def test_a_parameter_that_can_be_read_only_once_is_refused(self):
        def handler(a: int, b: Iterable[int] | None) -> None: ...

        with pytest.raises(KindError, match=r"'b' can be read only once.*kind_signature"):
            codec(handler)

    def test_an_alias_for_a_parameter_is_refused(self):
        def handler(a: Annotated[int, Field(alias="b")]) -> None: ...

        with pytest.raises(KindError, match=r"gives 'a' an alias.*kind_signature"):
            codec(handler)

    def test_a_context_that_is_not_first_is_refused(self):
        def handler(a: int, ctx: Context) -> None: ...

        with pytest.raises(KindError, match=r"'ctx': make that the first parameter.*kind_signature"):
            codec(handler)

    def test_a_context_imported_for_type_checkers_only_is_still_found(self):
        def handler(ctx: "JobContext", a: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert Codec(handler, "handler", type("JobContext", (), {})).takes_context

    def test_a_wrapped_function_is_read_with_the_names_of_its_own_module(self):
        def handler(a: "Any") -> None: ...

        assert codec(lru_cache(handler)).bind((1,), {}) == {"a": 1}

    def test_a_wrapped_function_is_read_through_its_wrapper(self):
        @wraps(send)
        def wrapper(*args, **kwargs):
            return send(*args, **kwargs)

        assert codec(wrapper).bind(("a",), {}) == {"to": "a"}

    def test_reading_signatures_loads_no_pydantic_and_the_codec_no_asyncio(self):
        program = (
            "import sys, perdure.payload.signature\nprint('pydantic' in sys.modules)\n"
            "from perdure.payload.codec import Codec\nCodec(lambda a: a, 'x').encode({'a': 1})\n"
            "print('asyncio' in sys.modules)"
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
