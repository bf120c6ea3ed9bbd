"""`Kind`: a function that can be enqueued. Made by `app.job`; hands drafts back to the app, which enqueues them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, cast

from perdure.errors import InvalidPayload, KindError, shown
from perdure.job.model import Plan
from perdure.job.views import Job
from perdure.lazy import lazy
from perdure.options import NAME_LIMIT, OptionFields, Options, for_a_job, listed
from perdure.payload.signature import call_of, innermost

if TYPE_CHECKING:
    from uuid import UUID

    from perdure.payload.codec import Codec

P = ParamSpec("P")
"""What the function is enqueued with."""
Q = ParamSpec("Q")
"""What the function is called with: the same, and perhaps a context."""
R = TypeVar("R")
"""What a run of it results in."""
C = TypeVar("C")
"""What a plain call gives: the result, or a coroutine of it."""

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class Draft(NamedTuple):
    """A job that is not enqueued yet: made by `new`, taken by `app.enqueue_many` and `app.supersede`."""

    kind: Kind[..., Any, ..., Any]
    arguments: Mapping[str, Any]
    options: Options
    plan: Plan

    def __repr__(self) -> str:
        return f"<Draft of {self.kind.name}>"  # the arguments may hold secrets


class Desk(Protocol):
    """What a kind needs of its app."""

    @property
    def owner(self) -> str: ...

    @property
    def url(self) -> str: ...

    def enqueue_arguments(
        self, kind: Kind[..., Any, ..., Any], arguments: Mapping[str, Any], options: Options, plan: Plan
    ) -> Job: ...

    async def aenqueue_draft(self, draft: Draft) -> Job: ...

    def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Job]: ...

    def wait(self, job: Job | UUID | str, timeout: float | None = None) -> Job: ...

    async def await_(self, job: Job | UUID | str, timeout: float | None = None) -> Job: ...


class Bound(Generic[P, R]):
    """A kind with options: what `kind.options(…)` gives."""

    def __init__(self, kind: Kind[P, R, ..., Any], options: Options) -> None:
        self._kind = kind
        self._options = options
        self.plan = options.plan(kind.names, kind.version, kind.desk.owner)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue one job. When this returns, it is in the database for good (with `tx=`: once you commit)."""
        kind = self._kind
        return kind.desk.enqueue_arguments(kind, kind.codec.bind(args, kwargs), self._options, self.plan)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for coroutines."""
        return await self._kind.desk.aenqueue_draft(self.new(*args, **kwargs))

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Enqueue one job for each set of arguments, all in one transaction or none."""
        drafts = [self.draft(one) for one in listed(arguments, "a list of arguments, one dict each")]
        return self._kind.desk.enqueue_many(drafts)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """A job for `app.enqueue_many` or `app.supersede`. Its arguments are checked when it is enqueued."""
        return self.draft(self._kind.codec.bind(args, kwargs))

    def draft(self, arguments: Mapping[str, Any]) -> Draft:
        """The same from arguments by name."""
        return Draft(self._kind, arguments, self._options, self.plan)

    def options(self, **changes: Unpack[OptionFields]) -> Bound[P, R]:
        """The same with further options."""
        return Bound(self._kind, self._options.changed(for_a_job(changes)))


class Kind(Generic[P, R, Q, C]):
    """A function whose calls can be enqueued as jobs. Still a plain function when called."""

    def __init__(
        self,
        desk: Desk,
        function: Callable[Q, C],
        *,
        name: str,
        aliases: tuple[str, ...],
        version: int,
        upgrades: Mapping[int, Upgrade],
        defaults: Options,
        isolation: str | None,
        max_payload_bytes: int,
        context_type: type,
    ) -> None:
        self.desk = desk
        self.function = function
        self.name = name
        self.aliases = aliases
        self.version = version
        self.upgrades = upgrades
        self.defaults = defaults
        self.isolation = isolation
        self._max_payload_bytes = max_payload_bytes
        self._context_type = context_type
        self.is_async = is_coroutine_function(function)
        """It runs on the event loop. A plain function may return a coroutine still, which is then awaited."""
        self._bound: Bound[P, R] = Bound(cast("Kind[P, R, ..., Any]", self), defaults)
        update_wrapper(self, function, WRAPPER_ASSIGNMENTS, updated=())
        for note, value in vars(function).items() if inspect.isfunction(function) else ():
            if not hasattr(type(self), note):
                self.__dict__.setdefault(note, value)  # whatever was noted on the function, but never in our place

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C:
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue one job with the kind's own options. When this returns, the job is in the database for good."""
        arguments = self.codec.bind(args, kwargs)
        return self.desk.enqueue_arguments(self, arguments, self.defaults, self._bound.plan)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for coroutines."""
        return await self._bound.aenqueue(*args, **kwargs)

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Enqueue one job for each set of arguments, all in one transaction or none."""
        return self._bound.enqueue_many(arguments)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """A job for `app.enqueue_many` or `app.supersede`."""
        return self._bound.new(*args, **kwargs)

    def options(self, **changes: Unpack[OptionFields]) -> Bound[P, R]:
        """This kind with other options than its own, for one or more jobs."""
        return self._bound.options(**changes)

    def wait(self, job: Job | UUID | str, timeout: float | None = None) -> R:
        """Wait for the job's end and return its result. JobFailed: it ended without one. WaitTimeout: it goes on."""
        return self._result(self.desk.wait(job, timeout))

    async def await_(self, job: Job | UUID | str, timeout: float | None = None) -> R:
        """`wait` for coroutines."""
        return self._result(await self.desk.await_(job, timeout))

    def _result(self, job: Job) -> R:
        return cast("R", self.codec.decode_result(job.ended_well().row.result))

    @lazy
    def codec(self) -> Codec:
        """Built on first use: annotations may name what is defined further down."""
        from perdure.payload.codec import Codec

        return Codec(self.function, self.name, self._context_type, max_bytes=self._max_payload_bytes)

    def load(self, payload: str, secrets: str | None, version: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored job, upgraded to this version and checked, to call the function with."""
        if version < self.version and self.upgrades:
            payload = self._upgraded(payload, version)
        return self.codec.decode(payload, secrets)

    def _upgraded(self, payload: str, version: int) -> str:
        import json

        try:
            arguments = json.loads(payload)
        except ValueError:
            raise InvalidPayload(
                f"the payload of this {self.name} job is not JSON", code="payload_unreadable"
            ) from None
        for step in range(version, self.version):
            if step in self.upgrades:
                arguments = self.upgrades[step](arguments)
        return json.dumps(arguments, ensure_ascii=False)

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, each once: the current one, then those it had before."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    @property
    def place(self) -> str:
        """Where the function stands, for messages."""
        return place_of(self.function)

    def __repr__(self) -> str:
        return f"<Kind {self.name} version {self.version} from {self.place}>"


def place_of(function: Callable[..., Any]) -> str:
    code = getattr(innermost(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else shown(function)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine for sure. Decorators that turn one into a plain function are taken at their
    word: what they wrap does not count."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_of(function))


def _given(function: Callable[..., Any]) -> tuple[str, ...]:
    """What `functools.partial` has given it already: two of the same function are not the same kind."""
    given: list[str] = []
    while isinstance(function, partial):
        given += [shown(function.args), shown(function.keywords)]
        function = function.func
    return tuple(given)


class Registry:
    """The kinds of one app by name and alias."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind[..., Any, ..., Any]] = {}

    def add(self, kind: Kind[..., Any, ..., Any]) -> None:
        """Make a kind known. The same name from two places is refused; the same place again is a module reload."""
        for name in kind.names:
            known = self._kinds.get(name)
            if known is not None and (known.place, _given(known.function)) != (kind.place, _given(kind.function)):
                raise KindError(
                    f"two functions are declared as kind {name!r}: {known.place} and {kind.place}; give one of them"
                    " another name with @app.job(name=…)",
                    code="kind_duplicate",
                )
        for name in kind.names:
            self._kinds[name] = kind

    def get(self, name: str) -> Kind[..., Any, ..., Any]:
        """The kind of that name or alias."""
        kind = self.find(name)
        if kind is None:
            raise self._unknown(name)
        return kind

    def _unknown(self, name: object) -> KindError:
        from difflib import get_close_matches

        near = get_close_matches(name[:NAME_LIMIT], list(self._kinds), n=1) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "import the module that declares it first"
        return KindError(f"no kind is called {shown(name)} here; {hint}", code="kind_unknown")

    def find(self, name: object) -> Kind[..., Any, ..., Any] | None:
        return self._kinds.get(name) if isinstance(name, str) else None

    def meant_by(self, name: str | None) -> tuple[str | None, ...]:
        """The names under which what is asked for by one may be stored: a kind's current name stands for all of its
        names, any other only for itself."""
        kind = self.find(name)
        return kind.names if kind is not None and kind.name == name else (name,)

    def versions(self) -> dict[str, int]:
        """What this process can run: every name and alias, with the newest version it has."""
        return {name: kind.version for name, kind in self._kinds.items()}

    def __iter__(self) -> Iterator[Kind[..., Any, ..., Any]]:
        return iter(dict.fromkeys(self._kinds.values()))
