"""The parameters of a kind's function, and which arguments fit them. Called by `codec`; does not import pydantic.

Read when the codec is built, on first use of the kind: annotations may name things defined later.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import EnumType, Flag, auto
from functools import partial
from types import MethodType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from perdure.errors import InvalidPayload, KindError, Problem
from perdure.words_of_others import OPTIONS

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
MISSING = "is missing"
UNKNOWN = "is not a parameter"
_CONTEXT_HINT = " For the job's context write ctx: JobContext."
_ALIASES = ("alias", "validation_alias", "serialization_alias")

# Types whose every value has one JSON form, which reads back as the same value.
_EXACT: frozenset[object] = frozenset({str, int, bool, NoneType, date, datetime, time, Decimal, UUID})
_LOOSE: frozenset[object] = frozenset({Any, object, float, list, dict, tuple})


class Secret:
    """Marks a parameter whose value stays out of the payload: `password: Annotated[str, Secret]`, or `Secret()`."""


class Trait(Flag):
    """What an annotation means for storing its values."""

    NONE = 0
    LOOSE = auto()  # the value decides whether JSON can hold it: Any, float, a bare container, an unknown class
    FOREIGN = auto()  # a type with its own JSON rules: a model, a set, a validator
    SECRET = auto()  # a secret, or something that holds one
    ONCE = auto()  # can be read only once, and is checked only then: an iterator


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters a job is enqueued with: those of the function, without its context."""

    kind: str
    annotations: dict[str, object]
    required: frozenset[str]
    by_position: tuple[str, ...]
    only_by_position: dict[str, object]
    takes_context: bool
    returns: object
    text: str

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """The arguments by name, as passed and without defaults; `kwargs` itself if there are no others.

        Does not check types. Raises InvalidPayload for too many, unknown, missing or doubled arguments.
        """
        if not kwargs and len(args) == len(self.annotations) == len(self.by_position):
            return dict(zip(self.by_position, args, strict=False))
        arguments = self._named(args, kwargs) if args else kwargs
        if self.required.issubset(arguments) and self.annotations.keys() >= arguments.keys():
            return arguments
        missing = [
            Problem(repr(name), MISSING) for name in self.annotations if name in self.required - arguments.keys()
        ]
        raise self.refusal([*missing, *self.unknown(arguments)])

    def _named(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        if len(args) > len(self.by_position):
            given, room = len(args), len(self.by_position)
            raise self.refusal([Problem(f"at most {room}", f"can be given by position, not {given}")])
        arguments = dict(zip(self.by_position, args, strict=False))
        if not arguments.keys().isdisjoint(kwargs):
            raise self.refusal([Problem(repr(name), "was given twice") for name in arguments if name in kwargs])
        return arguments | kwargs if kwargs else arguments

    def unknown(self, names: Iterable[str]) -> list[Problem]:
        """The names that are no parameters."""
        return [Problem(repr(name), UNKNOWN) for name in names if name not in self.annotations]

    def refusal(self, problems: Sequence[Problem], code: str = "payload_invalid") -> InvalidPayload:
        """The error for arguments that do not fit; it ends with the expected signature."""
        said = "; ".join(map(str, problems))
        hint = _CONTEXT_HINT if Problem("'ctx'", MISSING) in problems and self.annotations["ctx"] is Any else ""
        hint = hint or self._option_hint(problems)
        text = f"Job {self.kind!r} cannot take its arguments: {said}. Expected {self.text}.{hint}"
        error = InvalidPayload(text, code=code)
        error.kind, error.problems, error.parameters = self.kind, problems, self.text.removeprefix(self.kind)[1:-1]
        return error

    def _option_hint(self, problems: Sequence[Problem]) -> str:
        """For an argument that is an option, here or elsewhere: options are not given with the arguments."""
        from perdure.options import OPTION_NAMES

        for name in (problem.place.strip("'") for problem in problems if problem.wrong == UNKNOWN):
            if name in OPTION_NAMES:
                return f" Options come before: {self.kind}.options({name}=…).enqueue(…)."
            if name in OPTIONS:
                return f" Instead of {name}= write {OPTIONS[name]}: {self.kind}.options(…).enqueue(…)."
        return ""

    def call(self, values: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments as the function takes them, after its context if it has one.

        A positional-only parameter that was left out before one that was passed gets its default.
        """
        if not self.only_by_position:
            return (), values
        names = list(self.only_by_position)
        while names and names[-1] not in values:
            names.pop()
        args = tuple(values.get(name, self.only_by_position[name]) for name in names)
        return args, {name: value for name, value in values.items() if name not in names}


def read_signature(function: Callable[..., object], kind: str, context_type: type | None) -> Signature:
    """The signature of `function`. Raises KindError if its arguments cannot be stored by name."""
    parameters, hints = _resolve(function, kind, context_type)
    first = parameters[0] if context_type is not None and parameters else None
    takes_context = first is not None and hints.get(first.name) is context_type and first.kind in _BY_POSITION
    if takes_context:
        del parameters[0]
    for parameter in parameters:
        if problem := _problem(parameter, hints.get(parameter.name), context_type):
            raise KindError(f"Kind {kind!r} {problem}", code="kind_signature")
    returns = hints.get("return", Any)
    return Signature(
        kind=kind,
        annotations={parameter.name: hints.get(parameter.name, Any) for parameter in parameters},
        required=frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty),
        by_position=tuple(parameter.name for parameter in parameters if parameter.kind in _BY_POSITION),
        only_by_position={p.name: p.default for p in parameters if p.kind is p.POSITIONAL_ONLY},
        takes_context=takes_context,
        returns=get_args(returns)[-1] if get_origin(returns) in (Coroutine, Awaitable) else returns,
        text=kind + _text(parameters, hints),
    )


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as written in the source: without `functools.partial`, bound object, and decorators that set
    `__wrapped__`; for a callable object, its `__call__`."""
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, (MethodType, staticmethod)):
            function = function.__func__
        else:
            function = getattr(function, "__wrapped__", None) or call_of(function) or function
    return function


def call_of(function: object) -> Any:
    """`__call__` of an object that is no function. None: it is a function, or its class has no `__call__` in Python."""
    call = None if inspect.isroutine(function) else inspect.getattr_static(type(function), "__call__", None)
    return call if inspect.isfunction(call) else None


def _resolve(
    function: Callable[..., object], kind: str, context_type: type | None
) -> tuple[list[inspect.Parameter], dict[str, object]]:
    inner = innermost(function)
    # The context's name is known even if it was imported for type checkers only.
    known: dict[str, Any] = {} if context_type is None else {context_type.__name__: context_type}
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(inner, known | getattr(inner, "__globals__", {}), include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation is an expression: it can fail in any way
        problem = f"{type(error).__name__}: {error}"
    else:
        return parameters, hints
    raise KindError(
        f"The annotations of kind {kind!r} cannot be resolved ({problem}). Define every name in them at module level, "
        f"and import it at run time, not for type checkers only.",
        code="kind_signature",
    )


def _problem(parameter: inspect.Parameter, hint: object, context: type | None) -> str | None:
    """Why a job cannot have this parameter. None: it can."""
    if parameter.kind in _VARIADIC:
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        return (
            f"takes {stars}{parameter.name}, but a job's arguments are stored by name: "
            f"declare each parameter, or one that is a list or a dict."
        )
    if any(getattr(item, alias, None) for item in get_args(hint)[1:] for alias in _ALIASES):
        return (
            f"gives {parameter.name!r} an alias, but arguments are stored under the parameter's name: "
            f"rename the parameter instead."
        )
    if context is not None and hint is context:
        return (
            f"asks for its {context.__name__} in {parameter.name!r}: make that the first parameter, "
            f"one that can be passed by position."
        )
    return None


class _SomeDefault:
    """Shown for any default in an error text: the real one may be a secret."""

    def __repr__(self) -> str:
        return "..."


def _text(parameters: list[inspect.Parameter], hints: Mapping[str, object]) -> str:
    shown = [
        parameter.replace(
            annotation=hints.get(parameter.name, parameter.empty),
            default=parameter.empty if parameter.default is parameter.empty else _SomeDefault(),
        )
        for parameter in parameters
    ]
    return str(inspect.Signature(shown))


def traits(*annotations: object) -> Trait:
    """The traits of these annotations together. A secret is found at any depth, also in a model's fields."""
    found = Trait.NONE
    for part in _parts(annotations):
        found |= _own_traits(part)
    return found


def field_names(*annotations: object) -> frozenset[str]:
    """The names of all fields in these annotations: of models, dataclasses and typed dicts."""
    found: set[str] = set()
    for part in _parts(annotations):
        owner = get_origin(part) or part
        fields: Mapping[str, Any] = getattr(owner, "__pydantic_fields__", None) or getattr(owner, "__annotations__", {})
        aliases = (getattr(field, name, None) for field in fields.values() for name in _ALIASES)
        found.update(fields, (alias for alias in aliases if isinstance(alias, str)))
    return frozenset(found)


def _parts(annotations: Iterable[object]) -> Iterator[object]:
    """These annotations and all their parts, each once."""
    seen, ahead = dict[int, object](), list(annotations)
    while ahead:
        part = ahead.pop()
        if id(part) not in seen:
            seen[id(part)] = part  # kept alive: a freed object's id may be given to the next
            yield part
            ahead.extend(_inside(part))


def _own_traits(annotation: object) -> Trait:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marked = any(item is Secret or isinstance(item, Secret) for item in args[1:])
        return Trait.SECRET | Trait.FOREIGN if marked else Trait.FOREIGN
    if (origin or annotation) in (Iterable, Iterator, Generator):
        return Trait.ONCE
    if origin is Literal:
        return Trait.NONE if _EXACT.issuperset(map(type, args)) else Trait.FOREIGN
    if origin is Union or origin is UnionType:
        return Trait.NONE
    if origin is list or origin is tuple or origin is dict:
        return Trait.NONE if args else Trait.LOOSE
    if isinstance(annotation, type) and annotation in _EXACT:
        return Trait.NONE
    if isinstance(annotation, type) and annotation in _LOOSE:
        return Trait.LOOSE
    if _is_secret_type(annotation):
        return Trait.SECRET | Trait.FOREIGN
    return Trait.FOREIGN if _is_known_by_parts(origin or annotation) else Trait.FOREIGN | Trait.LOOSE


def _is_known_by_parts(named: object) -> bool:
    """Whether a value can hold nothing but the parts that `_inside` gives, or an enum's members."""
    if getattr(named, "model_config", {}).get("extra") == "allow":
        return False
    return (
        isinstance(named, EnumType) or hasattr(named, "__pydantic_fields__") or hasattr(named, "__dataclass_fields__")
    )


def _is_secret_type(annotation: object) -> bool:
    """Whether it is pydantic's SecretStr, SecretBytes or Secret[T]."""
    return hasattr(annotation, "get_secret_value")


def _inside(annotation: object) -> Iterator[object]:
    """The parts of this annotation: arguments, fields, the target of an alias."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal or _is_secret_type(annotation):
        return
    yield from args[:1] if origin is Annotated else (part for part in args if part is not Ellipsis)
    named = annotation if origin is None else origin
    for attribute in ("__supertype__", "__value__", "__bound__"):  # NewType, type alias, type variable
        if (meant := getattr(named, attribute, None)) is not None:
            yield meant
    if isinstance(named, type):
        yield from _fields(named)


def _fields(owner: type) -> Iterator[object]:
    fields: Mapping[str, Any] | None = getattr(owner, "__pydantic_fields__", None)
    if fields is not None:
        for field in fields.values():
            yield Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        return
    try:
        hints = get_type_hints(owner, include_extras=True)
    except Exception:  # noqa: BLE001 - names only pydantic can resolve; a secret missed here is refused when met
        yield Any
    else:
        yield from hints.values()
