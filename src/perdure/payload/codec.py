"""Arguments and results to JSON text and back, one codec per kind. Built by `kind`; calls `signature` and `json_form`.

Loads pydantic (50 ms and more): import it where a kind is first used, never while `import perdure` runs.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, Never, NoReturn, NotRequired, cast, get_args

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, from_json, to_json
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from perdure.errors import InvalidPayload, KindError, Problem
from perdure.lazy import Lazy, lazy
from perdure.payload.json_form import JsonForm, Misfit, Path, Untyped, are_plain, canonical, check_of, look_over
from perdure.payload.signature import MISSING, UNKNOWN, Secret, Signature, Trait, read_signature, traits

__all__ = ["MAX_BYTES", "Codec", "Encoded", "Secret"]

MAX_BYTES = 1024 * 1024
_SIMPLE: tuple[object, ...] = (str, int, bool)
_SHOWN = 80  # characters of a value in an error text
_PROBLEMS = 5  # in one error text: a million wrong items in a list are one mistake
_NO_OBJECT = Problem("they", "are not a JSON object")
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _SHOWN
_ELSEWHERE = "Store the data elsewhere and pass a reference to it (a path, a key, an id)"


class Encoded(NamedTuple):
    """A job's arguments as they are stored. `secrets` is a separate column."""

    payload: str
    secrets: str | None

    def __repr__(self) -> str:
        return f"Encoded(payload={self.payload!r}, secrets={'hidden' if self.secrets else None})"


class Codec(Lazy):
    """What one kind's function takes and returns, to JSON and back. Threads may share it.

    What `encode` accepts, `decode` reads back as the declared type. Without a declared type (no annotation, `Any`, a
    container of that) only values that JSON gives back unchanged are accepted. In a union of types with the same JSON
    form (`str | UUID`) the first that fits is read. No error, cause or repr holds a secret.
    """

    def __init__(
        self,
        function: Callable[..., object],
        kind: str,
        context_type: type | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Raises KindError (`kind_signature`) if the function's arguments cannot be stored as JSON by name."""
        self.signature = read_signature(function, kind, context_type)
        self.bind = self.signature.bind
        """The arguments by name, as passed and without defaults. Raises InvalidPayload; checks no types."""
        found = {name: traits(annotation) for name, annotation in self.signature.annotations.items()}
        self.secret_names = frozenset(name for name in found if Trait.SECRET in found[name])
        self._form = _arguments_form(self.signature, found, self.secret_names)
        self._undeclared = [
            (name, check)
            for name, annotation in self.signature.annotations.items()
            if (check := check_of(annotation)) is not None
        ]
        self._max_bytes = max_bytes
        self._names = tuple(self.signature.annotations)
        self._types = tuple(self.signature.annotations.values())
        self._simple = all(annotation in _SIMPLE for annotation in self._types)

    @property
    def takes_context(self) -> bool:
        return self.signature.takes_context

    def encode(self, arguments: Mapping[str, object]) -> Encoded:
        """Check the arguments and encode them, without defaults for those not passed.

        Raises InvalidPayload: `payload_invalid`, `payload_untyped`, `payload_not_json` or `payload_too_large`.
        """
        if arguments.__class__ is not dict and not isinstance(cast("object", arguments), Mapping):
            raise self.signature.refusal([Problem(_short(arguments), "is no dict of arguments by name")])
        values: Mapping[str, object] = {}
        try:
            if self._simple and tuple(arguments) == self._names and tuple(map(type, arguments.values())) == self._types:
                values, closely = arguments, False  # pydantic would find nothing to say
            else:
                closely = not are_plain(arguments.values()) and self._look_over(arguments)
                values = self._form.validate(arguments)
            raw, hidden = self._split(values) if self.secret_names else (self._form.write(values, closely), b"")
            for name, check in self._undeclared:
                if name in values:
                    check(values[name], (name,))
        except (ValidationError, PydanticSerializationError, Misfit) as error:
            refusal = self._refusal(error, values)
        else:
            if len(raw) + len(hidden) <= self._max_bytes:
                return Encoded(raw.decode(), hidden.decode() if hidden else None)
            size = f"{len(raw) + len(hidden):,} bytes, the limit is {self._max_bytes:,}"
            refusal = InvalidPayload(
                f"Job {self.signature.kind!r} has arguments of {size}. {_ELSEWHERE}.", code="payload_too_large"
            )
        # Raised outside the handler, here and below: pydantic's error holds the input and must not become the context.
        raise refusal

    def decode(self, payload: str, secrets: str | None) -> tuple[tuple[object, ...], dict[str, object]]:
        """The stored arguments, checked again, as the function takes them (after its context).

        Raises InvalidPayload: `payload_unreadable` if it is not JSON at all, `payload_invalid` if it does not fit.
        """
        return self.signature.call(self.values(payload, secrets))

    def values(self, payload: str, secrets: str | None) -> dict[str, object]:
        """The same by name, as `encode` takes them."""
        text = payload if secrets is None else to_json(self._merged(payload, secrets))
        try:
            return cast("dict[str, object]", self._form.read(text))
        except ValidationError as error:
            refusal = self._unreadable() if _is_not_json(error) else self._unfit(error)
        raise refusal

    @lazy
    def part(self) -> Codec:
        """The same for a part of the arguments: any of them may be left out. For templates and schedules."""
        part = copy(self)
        part.signature = replace(self.signature, required=frozenset())
        found = {name: traits(annotation) for name, annotation in self.signature.annotations.items()}
        part._form = _arguments_form(part.signature, found, self.secret_names)
        return part

    def fingerprint(self, payload: str, secrets: str | None) -> str:
        """SHA-256 of the arguments, in hex: the same for equal arguments in any order."""
        return sha256(canonical(self._merged(payload, secrets)).encode()).hexdigest()

    def encode_result(self, value: object, *, is_shown: bool = True) -> str | None:
        """What the function returned, as JSON text; None stays None.

        `is_shown` False: no error quotes any part of it, since it may hold a secret.

        Raises InvalidPayload: `result_invalid` if it does not fit the return annotation, `result_not_json` or
        `result_too_large`.
        """
        if value is None:
            return None
        try:
            look_over(value, ())
            raw = self._result_form.write(self._result_form.validate(value), closely=True)
        except ValidationError as error:
            refusal = self._bad_result(_summary(error, is_shown=is_shown), "result_invalid")
        except Misfit as misfit:
            refusal = self._bad_result(str(_misfit(misfit)), "result_not_json")
        except PydanticSerializationError as error:
            problem = str(error) if is_shown else "it cannot be written as JSON"
            refusal = self._bad_result(f"{problem}; return plain data, or nothing", "result_not_json")
        else:
            if len(raw) <= MAX_BYTES:
                return raw.decode()
            refusal = self._bad_result(
                f"{len(raw):,} bytes, the limit is {MAX_BYTES:,}. {_ELSEWHERE}", "result_too_large"
            )
        raise refusal

    def decode_result(self, text: str | None) -> object:
        """What the function returned, as its annotation says; without one, the JSON value.

        Raises InvalidPayload: `result_unreadable` or `result_invalid`.
        """
        if text is None:
            return None
        try:
            return cast("object", self._result_form.read(text))
        except ValidationError as error:
            code = "result_unreadable" if _is_not_json(error) else "result_invalid"
            refusal = self._bad_result(_summary(error), code)
        raise refusal

    @lazy
    def _result_form(self) -> JsonForm:
        returns = self.signature.returns
        # `Done`, or a union with `Done`, does not say the type of the result inside.
        is_open = any(getattr(part, "__perdure_result__", False) for part in (returns, *get_args(returns)))
        if not (is_open or returns is NoReturn or returns is Never):
            with suppress(Exception):  # a type pydantic does not know: what is returned decides
                return JsonForm(returns, traits(returns))
        return JsonForm(Any, Trait.LOOSE)

    def _look_over(self, arguments: Mapping[str, object]) -> bool:
        if not self.secret_names:
            return look_over(dict(arguments), ())
        return look_over({name: value for name, value in arguments.items() if name not in self.secret_names}, ())

    def _split(self, values: Mapping[str, object]) -> tuple[bytes, bytes]:
        tree = self._form.tree(values)
        hidden = {name: tree.pop(name) for name in list(tree) if name in self.secret_names}
        return to_json(tree), to_json(hidden) if hidden else b""

    def _merged(self, payload: str, secrets: str | None) -> dict[str, object]:
        try:
            parts = [cast("object", from_json(text)) for text in (payload, secrets or "{}")]
        except ValueError:
            parts = []
        if not parts:
            raise self._unreadable()
        merged: dict[str, object] = {}
        for part in parts:
            if not isinstance(part, dict):
                raise self.signature.refusal([_NO_OBJECT])
            merged |= cast("dict[str, object]", part)
        return merged

    def _refusal(self, error: Exception, values: Mapping[str, object]) -> InvalidPayload:
        if isinstance(error, ValidationError):
            return self._unfit(error)
        misfit = error if isinstance(error, Misfit) else Misfit((), "cannot be written as JSON")
        if not misfit.path:
            misfit = self._culprit(values) or misfit
        if misfit.path and misfit.path[0] in self.secret_names:
            misfit = type(misfit)(misfit.path[:1], "cannot be stored as JSON (a secret, so no more is shown)")
        code = "payload_untyped" if isinstance(misfit, Untyped) else "payload_not_json"
        return self.signature.refusal([_misfit(misfit)], code)

    def _culprit(self, values: Mapping[str, object]) -> Misfit | None:
        """The argument to blame when the arguments as a whole could not be written."""
        for name, value in values.items():
            if reason := self._form.fault_of(name, value):
                return Misfit((name,), reason)
        return None

    def _unfit(self, error: ValidationError) -> InvalidPayload:
        details = _details(error)
        not_json = any(item["type"] in ("string_unicode", "finite_number") for item in details)
        problems = dict.fromkeys(map(self._problem, details))  # several for one secret read the same
        return self.signature.refusal(_first(problems), "payload_not_json" if not_json else "payload_invalid")

    def _problem(self, item: ErrorDetails) -> Problem:
        path = item["loc"]
        if not path:
            return _NO_OBJECT
        if path[0] not in self.signature.annotations:
            return Problem(_place(path), UNKNOWN)
        if len(path) == 1 and item["type"] == "missing":
            return Problem(_place(path), MISSING)
        if path[0] in self.secret_names:
            return Problem(_place(path[:1]), "does not fit its type (a secret, so not shown)")
        return _described(item)

    def _unreadable(self) -> InvalidPayload:
        return InvalidPayload(
            f"The stored arguments of a {self.signature.kind!r} job are not JSON: they were changed or damaged outside "
            f"Perdure. Repair them in the database and resume the job, or cancel it and enqueue it again.",
            code="payload_unreadable",
        )

    def _bad_result(self, problem: str, code: str) -> InvalidPayload:
        return InvalidPayload(f"The result of a {self.signature.kind!r} job is refused: {problem}.", code=code)


def _arguments_form(signature: Signature, found: dict[str, Trait], secret: frozenset[str]) -> JsonForm:
    for name, trait in found.items():
        if Trait.ONCE in trait:
            raise _unusable(signature, f"{name!r} can be read only once; make it a list or a Sequence")
    try:
        given = _shape(signature, ConfigDict(extra="forbid"))
        # Bytes are base64 where stored, never where passed: there "aGk=" is a text of four characters.
        stored = _shape(signature, ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"))
        return JsonForm(given, traits(*signature.annotations.values()), stored=stored, secret=secret)
    except Exception as error:  # noqa: BLE001 - pydantic runs the user's own schema code
        problem = _unknown_type(signature) or str(error)
    raise _unusable(signature, f"{problem}. Use types pydantic knows")


def _shape(signature: Signature, config: ConfigDict) -> object:
    fields = {
        name: annotation if name in signature.required else NotRequired[cast("Any", annotation)]
        for name, annotation in signature.annotations.items()
    }
    shape = cast("Any", TypedDict)("Arguments", fields)
    shape.__pydantic_config__ = config
    return cast("object", shape)


def _unusable(signature: Signature, problem: str) -> KindError:
    return KindError(f"Kind {signature.kind!r} cannot be a job: {problem}.", code="kind_signature")


def _unknown_type(signature: Signature) -> str | None:
    """The first parameter whose annotation is to blame."""
    for name, annotation in signature.annotations.items():
        try:
            JsonForm(annotation, Trait.NONE)
        except Exception as error:  # noqa: BLE001 - as above
            return f"{name!r} is {annotation!r}, and {str(error).splitlines()[0].rstrip('.')}"
    return None


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False)


def _is_not_json(error: ValidationError) -> bool:
    return any(not item["loc"] and item["type"] in ("json_invalid", "string_unicode") for item in _details(error))


def _first(problems: Iterable[Problem]) -> list[Problem]:
    found = list(problems)
    rest = len(found) - _PROBLEMS
    return found if rest <= 0 else [*found[:_PROBLEMS], Problem("and", f"{rest} more")]


def _summary(error: ValidationError, *, is_shown: bool = True) -> str:
    described = _described if is_shown else _placed
    return "; ".join(map(str, _first(dict.fromkeys(map(described, _details(error))))))


def _described(item: ErrorDetails) -> Problem:
    wrong = "Input holds a lone surrogate" if item["type"] == "string_unicode" else item["msg"]
    return Problem(_place(item["loc"]) if item["loc"] else "", wrong, _short(item["input"]))


def _placed(item: ErrorDetails) -> Problem:
    return Problem("it", f"does not fit its type ({item['type']}; the job has secrets, so no more is shown)")


def _misfit(misfit: Misfit) -> Problem:
    return Problem(_place(misfit.path) if misfit.path else "it", misfit.reason)


def _place(path: Path) -> str:
    return _short(".".join(map(str, path)))


def _short(value: object) -> str:
    try:
        shown = _REPR.repr(value)
    except ValueError:  # an int too long for text
        shown = f"a very long {type(value).__name__}"
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
