"""JSON text that reads back as the same value, or an error. Called by `codec`; calls pydantic.

By itself pydantic silently stores NaN as null, bytes as text, a secret as asterisks and a set in an order that differs
between processes. Simple values get a cheap check; everything else is compared part by part.
"""

from __future__ import annotations

import json
import math
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import cycle, repeat
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeGuard, Union, cast, get_args, get_origin
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreConfig, CoreSchema, SchemaSerializer, SchemaValidator, from_json, to_json

from perdure.payload.signature import Trait

MAX_DEPTH = 190  # pydantic reads back 200 levels, those of the payload itself included
_SHORT = 2 * MAX_DEPTH  # bytes: a shorter text is neither too deep nor holds a number too long to be read back

_PLAIN: frozenset[type] = frozenset({str, int, float, bool, NoneType, date, timedelta, Decimal, UUID})
_TIMES: frozenset[type] = frozenset({datetime, time})
_JSON: frozenset[type] = frozenset({str, int, float, bool, NoneType})
_TEXT: frozenset[type] = frozenset({str})
_MINUTE = timedelta(minutes=1)
_MASK = "**********"  # what pydantic writes in place of a secret

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels, or holds itself; pass a flatter value"
_BYTES = "is bytes, which JSON does not have; base64-encode it and pass the text"
_NOT_FINITE = "is NaN or infinite, which JSON does not have; pass None or text instead"
_UNDECLARED = "holds a secret where none is declared; annotate the parameter with Annotated[..., Secret]"
_KEY = "has a key that is a container or bytes; JSON keys are text"
_SAME_KEYS = "has two keys that are the same text in JSON"
_UNSTABLE = "reads back from JSON as another value; its type needs a validator and a serialiser that mirror each other"
_ODD_OFFSET = "has a UTC offset with seconds in it, which JSON times cannot hold; pass it in UTC (.astimezone(UTC))"
_UNTYPED = (
    "{}, which JSON gives back as another type, and no type is declared for it; annotate the parameter, or pass only"
    " text, numbers, booleans, None, lists, and dicts with text keys"
)
_TOO_LONG = "holds a number of more than 4300 digits; pass it as text"

# A TypedDict's own settings do not reach its fields when they are written (pydantic 2.14); these do.
_WRITING = CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="base64")

Path: TypeAlias = tuple[object, ...]


class Misfit(Exception):
    """A part of a value that JSON cannot hold. Knows where and why, never the value itself."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


class Untyped(Misfit):
    """A part that JSON would give back as another type, because no type is declared for it."""


Check: TypeAlias = Callable[[object, Path], None]
"""Raises Untyped for what JSON would not give back unchanged."""


class JsonForm:
    """The values of one type and their JSON text. Immutable; threads may share it."""

    def __init__(
        self, given: object, traits: Trait, *, stored: object = None, secret: frozenset[str] = frozenset()
    ) -> None:
        """`given` is the type of incoming values; `stored` the type for writing and reading back, if it differs."""
        given_schema = _schema(given)
        stored_schema = given_schema if stored is None else _schema(stored)
        self.validate = SchemaValidator(given_schema).validate_python
        self.read = SchemaValidator(stored_schema).validate_json
        self._to_json = SchemaSerializer(stored_schema, _WRITING).to_json
        self._loose = bool(traits & (Trait.LOOSE | Trait.SECRET))
        self._foreign = Trait.FOREIGN in traits
        self._secret = secret

    def write(self, value: object, closely: bool) -> bytes:
        """The JSON text of a validated value; `closely` is what `look_over` returned for it.

        Raises Misfit for what JSON cannot hold, PydanticSerializationError for what pydantic cannot write.
        """
        # Written once: a generator has nothing left the second time.
        if closely or self._foreign:
            raw = self._written(value)
            sound = not self._loose and self._is_stable(raw)
        else:
            raw = self._to_json(value)
            sound = (not self._loose and len(raw) <= _SHORT) or _is_strict_json(raw)
        return raw if sound else to_json(self._checked(value, raw))

    def tree(self, value: object) -> Any:
        """The JSON tree of a validated value, with sets sorted and secret parameters in clear text.

        Reading it back gives the same tree. Raises as `write` does.
        """
        return self._checked(value, self._written(value))

    def _checked(self, value: object, raw: bytes) -> Any:
        tree = self._mirrored(value, raw)
        path: Path
        try:
            again = self.read(to_json(tree))
        except ValidationError as error:
            path = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
        else:
            second = self._mirrored(again, self._written(again))
            if second == tree:
                return tree
            path = _difference(tree, second)
        raise Misfit(path, _UNSTABLE)

    def fault_of(self, name: str, value: object) -> str | None:
        """Why this argument alone cannot be written, or None. For error texts."""
        try:
            self._mirrored({name: value}, self._written({name: value}))
        except Misfit as misfit:
            return misfit.reason
        except ValueError as error:
            return f"cannot be written as JSON ({error}); annotate the parameter, or pass plain data"
        return None

    def _is_stable(self, raw: bytes) -> bool:
        try:
            return self._written(self.read(raw)) == raw
        except ValueError:
            return False

    def _written(self, value: object) -> bytes:
        # round_trip leaves out computed fields; aliases are what models read back by.
        return self._to_json(value, round_trip=True, by_alias=True, warnings=False)

    def _mirrored(self, value: Any, raw: bytes) -> Any:
        form = _parsed(raw)
        if not self._secret:
            return _mirror(value, form, (), reveal=False)
        return {name: _mirror(value[name], form[name], (name,), reveal=name in self._secret) for name in form}


def _schema(annotation: object) -> CoreSchema:
    return TypeAdapter[Any](cast("Any", annotation)).core_schema


def are_plain(values: Iterable[object]) -> bool:
    """Whether all are simple values, in which `look_over` would find nothing."""
    return _PLAIN.issuperset(map(type, values))


def look_over(value: object, path: Path) -> bool:
    """Whether `value`, not validated yet, holds anything but plain values, lists and dicts with text keys.

    Raises Misfit for bytes, for times that pydantic would change, and for too deep nesting. This must come before
    pydantic, which turns bytes into text, changes such times, and fails on deep nesting.
    """
    children: Iterable[tuple[object, object]]
    own_type = type(value)
    if own_type in _PLAIN:
        return False
    if isinstance(value, (datetime, time)):
        _check_offset(value, path)
        return own_type not in _TIMES
    if _is_dict(value):
        foreign = own_type is not dict
        if not _TEXT.issuperset(map(type, value)):
            _check_keys(value, path)
            foreign = True
        children = value.items()
    elif _is_sequence(value):
        foreign = own_type is not list and own_type is not tuple
        children = () if are_plain(value) else enumerate(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raise Misfit(path, _BYTES)
    else:
        _check_times(value, path)
        return True
    if len(path) > MAX_DEPTH:
        raise Misfit(path[:1], _TOO_DEEP)
    for key, child in children:
        if type(child) not in _PLAIN and look_over(child, (*path, key)):
            foreign = True
    return foreign


def _check_times(value: object, path: Path) -> None:
    """The same for the times inside a model or dataclass; its own type checks the other parts."""
    parts: Iterable[tuple[object, object]]
    if isinstance(value, (datetime, time)):
        _check_offset(value, path)
        return
    if _is_dict(value):
        parts = value.items()
    elif _is_sequence(value):
        parts = enumerate(value)
    else:
        parts = _fields(value).items()
    if len(path) <= MAX_DEPTH:  # deeper ones are refused when they are written
        for key, part in parts:
            if type(part) not in _PLAIN:
                _check_times(part, (*path, key))


def _check_offset(value: datetime | time, path: Path) -> None:
    offset = value.utcoffset()
    if offset is not None and offset % _MINUTE:
        raise Misfit(path, _ODD_OFFSET)


def check_of(annotation: object) -> Check | None:
    """The check for the parts of this annotation that declare no type for JSON to be read back as. None: all do."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any or annotation is object:
        return _check_untyped
    if origin is Annotated:
        return check_of(args[0])
    if origin is Union or origin is UnionType:
        checks = {get_origin(part) or part: check for part in args if (check := check_of(part)) is not None}
        return checks.get(Any) or (_by_type(checks) if checks else None)
    container = origin or annotation
    if container in (dict, Mapping):
        key, value = map(check_of, args or (Any, Any))
        return None if key is None and value is None else _check_of_dict(key, value)
    if container in (list, tuple, set, frozenset, Sequence):
        items = [check_of(part) for part in args or (Any, ...) if part is not Ellipsis]
        return None if not any(items) else _check_of_items(items)
    return None


def _check_untyped(value: object, path: Path) -> None:
    own_type = type(value)
    if own_type in _JSON:
        return
    if own_type is list:
        for index, item in enumerate(cast("list[object]", value)):
            _check_untyped(item, (*path, index))
    elif own_type is dict:
        for key, item in cast("dict[object, object]", value).items():
            _check_key(key, path)
            _check_untyped(item, (*path, key))
    else:
        raise Untyped(path, _UNTYPED.format(f"is of type {own_type.__name__}"))


def _check_key(key: object, path: Path) -> None:
    if type(key) is not str:
        raise Untyped(path, _UNTYPED.format(f"has a key of type {type(key).__name__}"))


def _by_type(checks: Mapping[object, Check]) -> Check:
    """For a union: the check of the part that has the value's type."""

    def check(value: object, path: Path) -> None:
        fitting = checks.get(type(value))
        if fitting is not None:
            fitting(value, path)

    return check


def _check_of_dict(key: Check | None, member: Check | None) -> Check:
    def check(value: object, path: Path) -> None:
        for name, part in cast("Mapping[object, object]", value).items():
            if key is not None:
                _check_key(name, path)
            if member is not None:
                member(part, (*path, name))

    return check


def _check_of_items(items: list[Check | None]) -> Check:
    def check(value: object, path: Path) -> None:
        members = cast("Collection[object]", value)
        for index, (item, part) in enumerate(zip(cycle(items) if len(items) == 1 else items, members, strict=False)):
            if item is not None:
                item(part, (*path, index))

    return check


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_sequence(value: object) -> TypeGuard[Collection[Any]]:
    return isinstance(value, (list, tuple, set, frozenset, deque))


def _check_keys(keys: Iterable[object], path: Path) -> None:
    if any(isinstance(key, (bytes, tuple, frozenset)) for key in keys):
        raise Misfit(path, _KEY)


def canonical(tree: object) -> str:
    """One text for equal JSON values: keys sorted, no white space."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _is_strict_json(raw: bytes) -> bool:
    try:
        from_json(raw, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _parsed(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError as error:
        reason = _TOO_DEEP if "recursion" in str(error) else _TOO_LONG if "range" in str(error) else str(error)
    raise Misfit((), reason)


def _mirror(value: object, form: object, path: Path, *, reveal: bool) -> Any:
    """`form`, the JSON form of `value`, with sets sorted and secrets in clear text. Raises Misfit where it is wrong."""
    if isinstance(value, float) and not math.isfinite(value) and not isinstance(form, str):
        raise Misfit(path, _NOT_FINITE)
    if isinstance(value, (datetime, time)):
        _check_offset(value, path)
    secret = getattr(value, "get_secret_value", None)
    if secret is not None and reveal:
        return _laid_open(secret())
    if secret is not None or form == _MASK != value:
        raise Misfit(path, _UNDECLARED)
    if getattr(value, "__pydantic_root_model__", False):
        return _mirror(cast("Any", value).root, form, path, reveal=reveal)
    if _is_dict(form):
        members = _members(value, form, path)
        return {key: _mirror(members.get(key), part, (*path, key), reveal=reveal) for key, part in form.items()}
    if _is_list(form):
        known = value if _is_sequence(value) and len(value) == len(form) else repeat(None, len(form))
        pairs = enumerate(zip(known, form, strict=True))
        items = [_mirror(item, part, (*path, index), reveal=reveal) for index, (item, part) in pairs]
        return sorted(items, key=canonical) if isinstance(value, (set, frozenset)) else items
    return form


def _members(value: object, form: dict[str, Any], path: Path) -> dict[str, Any]:
    """The parts of a dict, model or dataclass, by their JSON keys."""
    if not _is_dict(value):
        return _fields(value)
    if _TEXT.issuperset(map(type, value)):
        return value
    if len(value) == len(form):
        return dict(zip(form, value.values(), strict=True))
    raise Misfit(path, _SAME_KEYS)


def _fields(value: object) -> dict[str, Any]:
    owner = type(value)
    fields: Mapping[str, Any] = getattr(owner, "__pydantic_fields__", None) or getattr(
        owner, "__dataclass_fields__", {}
    )
    named = {getattr(field, "serialization_alias", None) or name: name for name, field in fields.items()}
    extra: dict[str, Any] = getattr(value, "__pydantic_extra__", None) or {}
    return {key: getattr(value, name, None) for key, name in named.items()} | extra


def _laid_open(secret: object) -> Any:
    if isinstance(secret, (datetime, time)):
        _check_offset(secret, ())
    if isinstance(secret, bytes):
        return urlsafe_b64encode(secret).decode()
    return from_json(to_json(secret))


def _difference(one: object, other: object) -> Path:
    if _is_dict(one) and _is_dict(other):
        return next(((key,) for key in one if key not in other or one[key] != other[key]), ())
    return ()
