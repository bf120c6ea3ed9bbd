"""Secret arguments: kept apart, given back with their type, and shown nowhere."""

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, RootModel, SecretBytes, SecretStr
from typing_extensions import TypedDict

from perdure.errors import InvalidPayload
from perdure.payload.codec import Codec, Encoded, Secret

WORD = "hunter2"


class Login(BaseModel):
    user: str
    password: SecretStr


class Marked(BaseModel):
    password: Annotated[str, Secret]


class Aliased(BaseModel):
    password: SecretStr = Field(alias="pw")


class Logins(RootModel[list[Login]]):
    pass


@dataclass
class Account:
    password: SecretStr


class Keys(TypedDict):
    api: SecretStr


class Pair(NamedTuple):
    user: str
    password: SecretStr


class KeyHolder(BaseModel):
    key: SecretBytes


class BirthDate(pydantic.Secret[date]):
    def _display(self) -> str:
        return "****/**/**"


def handler_of(annotation: Any) -> Callable[..., object]:
    def handler(to, password=None): ...

    handler.__annotations__ = {"to": str, "password": annotation}
    return handler


def encoded(annotation: Any, value: object) -> tuple[Codec, Encoded]:
    codec = Codec(handler_of(annotation), "login", None)
    return codec, codec.encode({"to": "a", "password": value})


def error_of(call: Callable[[], object]) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        call()
    return caught.value


def everything_said(error: BaseException) -> str:
    assert error.__cause__ is None
    assert error.__context__ is None
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


KINDS_OF_SECRET = [
    (SecretStr, SecretStr(WORD)),
    (SecretStr | None, SecretStr(WORD)),
    (SecretBytes, SecretBytes(WORD.encode())),
    (SecretBytes, SecretBytes(b"\x00\xff\xfe" + WORD.encode())),
    (SecretBytes | None, SecretBytes(b"\xff")),
    (pydantic.Secret[date], pydantic.Secret[date](date(2024, 2, 29))),
    (Annotated[str, Secret], WORD),
    (Annotated[str, Secret()], WORD),
    (Annotated[str, Secret] | None, WORD),
    (Annotated[str | None, Secret], WORD),
    (Annotated[dict[str, int], Secret], {WORD: 1}),
    (list[SecretStr], [SecretStr(WORD), SecretStr("")]),
    (dict[str, SecretBytes], {"a": SecretBytes(b"\xff")}),
    (Login, Login(user="a", password=SecretStr(WORD))),
    (list[Login] | None, [Login(user="a", password=SecretStr(WORD))]),
    (Marked, Marked(password=WORD)),
    (Aliased, Aliased(pw=SecretStr(WORD))),
    (Logins, Logins([Login(user="a", password=SecretStr(WORD))])),
    (Account, Account(SecretStr(WORD))),
    (Keys, {"api": SecretStr(WORD)}),
    (Pair, Pair("a", SecretStr(WORD))),
]


@pytest.mark.parametrize(("annotation", "value"), KINDS_OF_SECRET, ids=lambda part: str(part)[:40])
class TestStoring:
    def test_a_secret_leaves_the_payload_and_comes_back_with_its_type(self, annotation, value):
        codec, stored = encoded(annotation, value)
        assert stored.payload == '{"to":"a"}'
        assert stored.secrets is not None
        assert list(json.loads(stored.secrets)) == ["password"]
        _, kwargs = codec.decode(stored.payload, stored.secrets)
        assert kwargs == {"to": "a", "password": value}
        assert type(kwargs["password"]) is type(value)

    def test_the_stored_form_shows_no_secret_when_printed(self, annotation, value):
        _, stored = encoded(annotation, value)
        assert repr(stored) == """Encoded(payload='{"to":"a"}', secrets=hidden)"""
        assert str(stored) == repr(stored)


class TestPassing:
    @pytest.mark.parametrize(("value", "meant"), [(b"\xff", b"\xff"), ("aGk=", b"aGk="), ("é", "é".encode())])
    def test_secret_bytes_can_be_passed_as_bytes_or_text(self, value, meant):
        codec, stored = encoded(SecretBytes, value)
        assert codec.decode(stored.payload, stored.secrets)[1]["password"] == SecretBytes(meant)

    def test_a_secret_not_passed_stores_nothing(self):
        codec = Codec(handler_of(SecretStr | None), "login", None)
        assert codec.encode({"to": "a"}).secrets is None
        assert codec.decode('{"to":"a"}', None) == ((), {"to": "a"})

    def test_a_secret_passed_as_none_is_kept_as_none(self):
        codec, stored = encoded(SecretStr | None, None)
        assert codec.decode(stored.payload, stored.secrets) == ((), {"to": "a", "password": None})

    def test_an_argument_stored_before_it_was_marked_secret_is_still_read(self):
        codec = Codec(handler_of(SecretStr), "login", None)
        _, kwargs = codec.decode('{"to":"a","password":"old"}', None)
        assert kwargs["password"] == SecretStr("old")


class TestShowingNothing:
    def test_a_secret_of_the_wrong_type_is_named_but_not_shown(self):
        codec = Codec(handler_of(Annotated[int, Secret]), "login", None)
        error = error_of(lambda: codec.encode({"to": "a", "password": WORD}))
        assert error.code == "payload_invalid"
        assert "'password' does not fit its type" in str(error)
        assert WORD not in everything_said(error)

    def test_another_wrong_argument_does_not_show_the_secret_beside_it(self):
        codec = Codec(handler_of(SecretStr), "login", None)
        assert WORD not in everything_said(error_of(lambda: codec.encode({"to": 5, "password": WORD})))
        assert WORD not in everything_said(error_of(lambda: codec.encode({"password": WORD})))

    def test_a_misspelt_secret_is_not_shown(self):
        codec = Codec(handler_of(SecretStr), "login", None)
        assert WORD not in everything_said(error_of(lambda: codec.encode({"to": "a", "pasword": WORD})))
        assert WORD not in everything_said(error_of(lambda: codec.bind((), {"to": "a", "pasword": WORD})))
        assert WORD not in everything_said(error_of(lambda: codec.bind(("a", "b", WORD), {})))

    def test_the_keys_inside_a_secret_are_not_shown(self):
        codec = Codec(handler_of(Annotated[dict[str, int], Secret]), "login", None)
        assert WORD not in everything_said(error_of(lambda: codec.encode({"to": "a", "password": {WORD: "x"}})))

    def test_the_words_of_a_validator_or_serialiser_of_a_secret_are_not_shown(self):
        def refuse(value: str) -> str:
            raise ValueError(f"bad: {value}")

        validated = Codec(handler_of(Annotated[str, AfterValidator(refuse), Secret]), "login", None)
        assert WORD not in everything_said(error_of(lambda: validated.encode({"to": "a", "password": WORD})))
        written = Codec(handler_of(Annotated[str, PlainSerializer(refuse), Secret]), "login", None)
        assert WORD not in everything_said(error_of(lambda: written.encode({"to": "a", "password": WORD})))

    def test_a_default_that_is_a_secret_is_not_shown(self):
        def handler(to: str, password: Annotated[str, Secret] = WORD) -> None: ...

        codec = Codec(handler, "login", None)
        assert WORD not in everything_said(error_of(lambda: codec.encode({"to": 5})))

    @pytest.mark.parametrize("secrets", [f'{{"password":["{WORD}"]}}', f'{{"password":"{WORD}'])
    def test_a_stored_secret_that_cannot_be_read_is_not_shown(self, secrets):
        codec = Codec(handler_of(SecretStr), "login", None)
        error = error_of(lambda: codec.decode('{"to":"a"}', secrets))
        assert WORD not in everything_said(error)

    def test_a_secret_too_long_is_refused_by_size_alone(self):
        codec = Codec(handler_of(SecretStr), "login", None, max_bytes=100)
        error = error_of(lambda: codec.encode({"to": "a", "password": WORD * 20}))
        assert error.code == "payload_too_large"
        assert WORD not in everything_said(error)

    @pytest.mark.parametrize("value", ["\ud800" + WORD, SecretStr("\ud800" + WORD)])
    def test_a_secret_that_is_no_text_is_refused_without_being_shown(self, value):
        codec = Codec(handler_of(SecretStr), "login", None)
        error = error_of(lambda: codec.encode({"to": "a", "password": value}))
        assert error.code == "payload_not_json"
        assert WORD not in everything_said(error)


class TestLosingNothing:
    """pydantic writes a secret as asterisks; stored so, it would be lost."""

    @pytest.mark.parametrize(
        "value",
        [SecretStr(WORD), [SecretStr(WORD)], Login(user="a", password=SecretStr(WORD)), BirthDate(date(2024, 2, 29))],
        ids=lambda value: type(value).__name__,
    )
    def test_a_secret_in_a_parameter_not_declared_as_one_is_refused(self, value):
        codec = Codec(handler_of(Any), "login", None)
        error = error_of(lambda: codec.encode({"to": "a", "password": value}))
        assert error.code == "payload_not_json"
        assert "holds a secret where none is declared" in str(error)
        assert WORD not in everything_said(error)

    def test_secret_bytes_that_their_model_would_read_back_differently_are_refused(self):
        codec = Codec(handler_of(KeyHolder), "login", None)
        error = error_of(lambda: codec.encode({"to": "a", "password": KeyHolder(key=SecretBytes(WORD.encode()))}))
        assert error.code == "payload_not_json"
        assert WORD not in everything_said(error)

    def test_secrets_that_can_be_read_only_once_are_refused(self):
        codec = Codec(handler_of(Any), "login", None)
        error = error_of(lambda: codec.encode({"to": "a", "password": (SecretStr(word) for word in [WORD])}))
        assert error.code == "payload_not_json"

    def test_a_secret_cannot_be_a_result(self):
        def handler() -> SecretStr:
            return SecretStr(WORD)

        error = error_of(lambda: Codec(handler, "login", None).encode_result(SecretStr(WORD)))
        assert error.code == "result_not_json"
        assert WORD not in everything_said(error)

    def test_bytes_beside_a_secret_are_still_refused(self):
        codec = Codec(handler_of(SecretBytes), "login", None)
        assert error_of(lambda: codec.encode({"to": b"a", "password": b"b"})).code == "payload_not_json"
