"""From a function to a kind. Called by `app.job`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, Protocol, cast, get_args, overload

from perdure.config import Config
from perdure.errors import InvalidInput, InvalidOption, KindError, not_among, shown
from perdure.kind import Desk, Kind, P, R, Upgrade, place_of
from perdure.options import OptionFields, Options, check_name, listed
from perdure.payload.signature import call_of
from perdure.worker.context import JobContext

if TYPE_CHECKING:
    from collections.abc import Coroutine


Isolation = Literal["process"]


class Declare(Protocol):
    """The decorator `app.job(…)` gives: a kind with the function's own types, less the context."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> Kind[P, R, Concatenate[JobContext, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], R], /
    ) -> Kind[P, R, Concatenate[JobContext, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Kind[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R, P, R]: ...


class Facts(NamedTuple):
    """What is said of a kind besides its function and its options."""

    name: str | None
    aliases: tuple[str, ...]
    version: int
    upgrades: Mapping[int, Upgrade]
    isolation: Isolation | None


def declared(
    desk: Desk, function: Callable[..., Any], facts: Facts, defaults: Options, config: Config
) -> Kind[..., Any, ..., Any]:
    """The kind that this function is from now on."""
    function = _checked_function(function)
    return Kind(
        desk,
        function,
        name=check_name(_plain_name(function) if facts.name is None else facts.name, "the kind's name"),
        aliases=tuple(check_name(alias, "an alias") for alias in facts.aliases),
        version=_checked_version(facts.version),
        upgrades=facts.upgrades,
        defaults=defaults,
        isolation=_checked_isolation(facts.isolation),
        max_payload_bytes=config.max_payload_bytes,
        context_type=JobContext,
    )


def _checked_function(function: object) -> Callable[..., Any]:
    """What is called for a job. KindError: nothing that could be."""
    if isinstance(function, staticmethod):
        function = cast("staticmethod[..., Any]", function).__func__
    if isinstance(function, Kind):  # of another app
        function = cast("Kind[..., Any, ..., Any]", function).function
    if isinstance(function, classmethod):
        raise KindError(
            "a classmethod has no class yet inside of it, so it cannot be called; declare it below the class, as in"
            " app.job(Mailer.send)"
        )
    if isinstance(function, type) or not callable(function):
        raise KindError(f"a kind is made of a function, not of {shown(function)}; put @app.job above a def")
    _refuse_generator(function)
    return function


def _refuse_generator(function: Callable[..., Any]) -> None:
    for one in (function, call_of(function)):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise KindError(
                f"{place_of(function)} is a generator: a call of it runs nothing, and nobody would take what it yields;"
                " do the work in the function, and return a list"
            )


def checked_aliases(aliases: object) -> tuple[str, ...]:
    """A text is a list of texts to Python, one for each letter: surely not meant."""
    if isinstance(aliases, str):
        raise InvalidOption(f"aliases must be a list of names; write aliases=[{shown(aliases)}]", code="name_invalid")
    return tuple(listed(aliases, "a list of names as aliases="))


def checked_upgrades(upgrades: object) -> dict[int, Upgrade]:
    if upgrades is None:
        return {}
    if not isinstance(upgrades, Mapping):
        raise InvalidInput(
            f"upgrades must say from which version each leads, as in {{1: function}}; not {shown(upgrades)}",
            code="version_invalid",
        )
    return dict(cast("Mapping[int, Upgrade]", upgrades))


def _plain_name(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise KindError(
            f"{shown(function)} ({place_of(function)}) has no name of its own to be a kind by; give it one with"
            " app.job(name=…)",
            code="kind_invalid",
        )
    return name


def _checked_isolation(isolation: object) -> str | None:
    if isolation is not None and isolation not in get_args(Isolation):
        told = not_among("isolation", isolation, get_args(Isolation))
        raise InvalidOption(f"{told}; leave it out for a thread or the event loop", code="option_invalid")
    return cast("str | None", isolation)


def _checked_version(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidInput(f"version must be a whole number from 1 on, not {shown(version)}", code="version_invalid")
    return version


def for_a_kind(options: OptionFields) -> OptionFields:
    """Refuse what only a single job can have."""
    for name in ("tx", "idempotency_key", "run_at"):
        if options.get(name) is not None:
            raise InvalidOption(
                f"{name}= belongs to a single job, not to a kind; pass it with .options({name}=…)",
                code="option_invalid",
            )
    return options
