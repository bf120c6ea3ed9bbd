"""No secret gets out of a run, in whatever form and by whatever way a handler says it."""

from __future__ import annotations

import json
import logging
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Annotated, Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretBytes, SecretStr

from perdure import Cancel, Fail, JobContext, Perdure, RetryAfter, Secret, Skip
from perdure.payload.signature import field_names
from perdure.worker.texts import HIDDEN, Redactor

log = logging.getLogger("shop.mail")
app = Perdure("never-opened.db")
Form = Callable[[bytes], str]

FORMS: dict[str, Form] = {
    "bytes": lambda data: f"{data!r}",
    "bytes in a list": lambda data: f"{[data]}",
    "bytes beside quotes": lambda data: f"{b'its ' + data + bytes(chr(39) + chr(34), 'ascii')!r}",
    "latin-1": lambda data: data.decode("latin-1"),
    "base64": lambda data: b64encode(data).decode(),
    "base64 for URLs": lambda data: urlsafe_b64encode(data).decode(),
    "base64 without padding": lambda data: urlsafe_b64encode(data).decode().rstrip("="),
    "hex": lambda data: data.hex(),
    "HEX": lambda data: data.hex().upper(),
    "URL": lambda data: f"https://x.org/{quote(data)}",
    "URL, nothing safe": lambda data: f"https://x.org/{quote(data, safe='')}",
    "form": lambda data: f"a=1&b={quote_plus(data)}",
}
TEXT_FORMS: dict[str, Callable[[str], str]] = {
    "text": str,
    "in a sentence": "the password is '{}', is it?".format,
    "repr": repr,
    "repr in a dict": lambda text: repr({"password": text}),
    "repr beside quotes": lambda text: repr(f'it\'s "{text}"'),
    "ascii": ascii,
    "JSON": json.dumps,
    "JSON with letters": lambda text: json.dumps({"password": text}, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps({"body": json.dumps({"password": text})}),
    "repr in JSON": lambda text: json.dumps({"body": repr(text)}),
    "repr in repr": lambda text: repr([repr([text])]),
}


def _as_bytes(form: Form) -> Callable[[str], str]:
    return lambda text: form(text.encode())


TEXT_FORMS |= {name: _as_bytes(form) for name, form in FORMS.items() if name != "latin-1"}

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=HIDDEN + "\0�")
LINE = st.text(LETTERS, min_size=3, max_size=12)
TEXTS = st.one_of(
    st.text(LETTERS, min_size=3, max_size=40),
    st.lists(LINE, min_size=2, max_size=4).map("\n".join),
    st.text('it\'s "quoted"\\', min_size=3, max_size=12),
    st.text("åß∂\u2028\x85/?&=+% ", min_size=3, max_size=12),
).filter(lambda text: len(text.strip()) >= 3)
BYTES = st.one_of(st.binary(min_size=3, max_size=40), TEXTS.map(str.encode)).filter(
    lambda data: HIDDEN.encode() not in data
)


# -- every form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXT_FORMS)
@given(secret=TEXTS)
def test_text_is_hidden_in_every_form(name: str, secret: str) -> None:
    told = TEXT_FORMS[name](secret)
    said = Redactor(json.dumps({"password": secret}))(told)
    assert HIDDEN in said
    assert secret not in said
    assert_nothing_left(said, TEXT_FORMS[name], secret)


@pytest.mark.parametrize("name", FORMS)
@given(secret=BYTES)
def test_bytes_are_hidden_in_every_form(name: str, secret: bytes) -> None:
    stored = json.dumps({"key": urlsafe_b64encode(secret).decode()})
    said = Redactor(stored)(FORMS[name](secret))
    assert HIDDEN in said
    assert_nothing_left(said, FORMS[name], secret)


def assert_nothing_left(said: str, form: Callable[[Any], str], secret: str | bytes) -> None:
    """What remains is what the form says of anything: the frame of the shortest text."""
    empty = form(secret[:0])
    frame = said.replace(HIDDEN, "")
    assert len(frame) <= len(empty) + 2, (said, empty)  # quotes of a repr may differ


@pytest.mark.parametrize("before", range(4))
@given(secret=st.binary(min_size=6, max_size=40))
def test_a_secret_is_hidden_inside_longer_base64(before: int, secret: bytes) -> None:
    for encode in (b64encode, urlsafe_b64encode):
        told = encode(b"user"[:before] + secret + b"!")
        said = Redactor(json.dumps({"key": urlsafe_b64encode(secret).decode()}))(told.decode())
        assert HIDDEN in said
        assert len(said) <= len(HIDDEN) + 2 * 4 + 2


@given(secret=st.binary(min_size=100, max_size=300))
def test_a_secret_is_hidden_in_base64_of_many_lines(secret: bytes) -> None:
    said = Redactor(json.dumps({"key": urlsafe_b64encode(secret).decode()}))(encodebytes(secret).decode())
    assert all(len(line.replace(HIDDEN, "")) <= 8 for line in said.splitlines())


class Login(BaseModel):
    user: str
    keys: dict[str, int]


def test_keys_are_secret_but_the_names_of_fields_are_not() -> None:
    stored = json.dumps({"login": {"user": "grace", "keys": {"hunter2": 1}}})
    redactor = Redactor(stored, field_names(Annotated[Login, Secret]))
    assert redactor("user grace has the keys hunter2") == "user ••• has the keys •••"


def test_secrets_in_lists_are_hidden_however_deep() -> None:
    redactor = Redactor(json.dumps({"codes": ["hunter2", ["swordfish", {"next": ["opensesame"]}]]}))
    assert redactor("hunter2, swordfish or opensesame") == "•••, ••• or •••"


def test_values_of_fewer_than_three_characters_are_left_alone() -> None:
    redactor = Redactor(json.dumps({"pin": "12", "blank": "      ", "number": 7, "yes": True, "none": None}))
    assert redactor("12 of 7 are True, None      is 12") == "12 of 7 are True, None      is 12"


def test_secrets_that_overlap_are_hidden_whole() -> None:
    assert Redactor(json.dumps({"a": "abcdef", "b": "defghi"}))("<abcdefghi>") == "<•••>"


def test_a_date_is_hidden_as_python_prints_it() -> None:
    redactor = Redactor(json.dumps({"born": "2024-02-29"}))
    assert redactor(f"{date(2024, 2, 29)} {[date(2024, 2, 29)]}") == "••• [•••]"


def test_secrets_that_cannot_be_read_are_hidden_as_they_are() -> None:
    assert Redactor('{"password": "hunt')('holds {"password": "hunt') == "holds •••"


class Narrow(BaseModel):
    size: int


@app.job(retry=1)
def answers(password: Annotated[str, Secret]) -> Narrow:
    return {"size": password}  # type: ignore[return-value]


@app.job(retry=1)
def answers_in_a_transaction(ctx: JobContext, password: Annotated[str, Secret]) -> Narrow:
    with ctx.transaction() as tx:
        tx.result({"size": password})
    raise AssertionError


@pytest.mark.parametrize("kind", [answers, answers_in_a_transaction])
def test_a_result_that_is_refused_is_not_quoted_even_in_part(kind: Any) -> None:
    with app.testing() as t:
        job = kind.enqueue(password="hunter" * 80)
        t.drain()
        (run,) = app.runs(job)
        assert run.error_type == "InvalidPayload"
        assert "hunter" not in f"{run.error_message}{run.traceback}"


# -- every way out ---------------------------------------------------------------------------------------------------

NAMELESS = str.maketrans({"\0": "?"})  # no class has a name with that


def _group(ctx: JobContext, told: str) -> None:
    raise ExceptionGroup("several", [ValueError(told), ExceptionGroup("more", [OSError(told)])])


def _noted(ctx: JobContext, told: str) -> None:
    error = ValueError("see below")
    error.add_note(told)
    raise error from KeyError(told)


def _raised(error: Callable[[str], BaseException]) -> Callable[[JobContext, str], None]:
    def way(ctx: JobContext, told: str) -> None:
        raise error(told)

    return way


def _logged(ctx: JobContext, told: str) -> None:
    ctx.log.info("using %s", told)
    log.warning("using %s", told)
    try:
        _group(ctx, told)
    except ExceptionGroup:
        log.exception("refused")
        ctx.log.exception("refused", stack_info=True)


def _noticed(ctx: JobContext, told: str) -> None:
    ctx.progress(1, note=told)
    ctx.artifact(f"/tmp/{told}")
    ctx.metric(**{told: 1})


WAYS: dict[str, Callable[[JobContext, str], None]] = {
    "the error's text": _raised(ValueError),
    "the error's type": _raised(lambda told: type(told.translate(NAMELESS), (Exception,), {})()),
    "a type that cannot be described": _raised(
        lambda told: type(
            told.translate(NAMELESS), (Exception,), {"__str__": None, "__class__": property(lambda _: 1 / 0)}
        )()
    ),
    "a group of errors": _group,
    "a note and a cause": _noted,
    "Fail": _raised(Fail),
    "RetryAfter": _raised(lambda told: RetryAfter(5, told)),
    "Skip": _raised(Skip),
    "Cancel": _raised(Cancel),
    "log lines": _logged,
    "what is noted on the way": _noticed,
}


@app.job(retry=2)
def login(ctx: JobContext, way: str, password: SecretStr) -> None:
    WAYS[way](ctx, " ".join(form(password.get_secret_value()) for form in TEXT_FORMS.values()))


@app.job(retry=2)
def unlock(ctx: JobContext, way: str, key: SecretBytes) -> None:
    WAYS[way](ctx, " ".join(form(key.get_secret_value()) for form in FORMS.values()))


class Listener(logging.Handler):
    """Hears what the lifecycle's logger tells of errors, and what `ctx.log` passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = getattr(record, "perdure", {})
        self.heard += [str(facts[name]) for name in ("error", "error_type", "reason") if facts.get(name)]
        if record.name == "perdure.job":
            assert record.exc_info is None
            self.heard.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    logger, listener = logging.getLogger("perdure"), Listener()
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    try:
        yield listener.heard
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)


def everything_kept(job: Any) -> list[str]:
    found = app.existing(job)
    kept: list[object] = [found.error, found.error_type, *(line.message for line in app.logs(job))]
    for run in app.runs(job):
        kept += [run.error_type, run.error_message, run.traceback, *run.artifacts]
        kept += [name for name in run.metrics if name != "progress"]
        kept.append(run.metrics.get("progress", {}).get("note"))
    return [str(text) for text in kept if text is not None]


def assert_kept_back(secret: str, forms: Iterable[str], texts: list[str]) -> None:
    for trace in (*forms, *map(str.strip, secret.splitlines())):
        for text in texts:
            assert len(trace) < 3 or trace not in text


FEW = settings(max_examples=5)  # each is a database and a job; the forms have their own tests above


@pytest.mark.parametrize("way", WAYS)
@given(secret=TEXTS)
@FEW
def test_text_gets_out_by_no_way(way: str, secret: str) -> None:
    with app.testing() as t, listening() as heard:
        job = login.enqueue(way, SecretStr(secret))
        t.drain()
        kept = everything_kept(job)
        assert kept
        assert_kept_back(secret, (form(secret) for form in TEXT_FORMS.values()), kept + heard)


@pytest.mark.parametrize("way", WAYS)
@given(secret=BYTES)
@FEW
def test_bytes_get_out_by_no_way(way: str, secret: bytes) -> None:
    with app.testing() as t, listening() as heard:
        job = unlock.enqueue(way, SecretBytes(secret))
        t.drain()
        kept = everything_kept(job)
        assert kept
        assert_kept_back(secret.decode("latin-1"), (form(secret) for form in FORMS.values()), kept + heard)
