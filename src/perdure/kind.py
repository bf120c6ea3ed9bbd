"""`Kind`: a function that can be enqueued, and `Registry`: the kinds of one app by name. Made by `app.job`; enqueues
through its app."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from perdure.checks import NAME_LIMIT, Span, check_choice, check_list, check_name, check_names, check_whole
from perdure.errors import InvalidInput, InvalidOption, InvalidPayload, KindError, WaitTimeout, shown
from perdure.job.model import Plan
from perdure.job.views import Job
from perdure.lazy import Lazy, lazy
from perdure.limit.rule import Limit, Rate, Rule, name_for
from perdure.names import public
from perdure.options import OptionFields, Options, for_a_job
from perdure.payload.signature import call_of, innermost
from perdure.words_of_others import OF_A_KIND, refuse

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from uuid import UUID

    from perdure.app import Perdure
    from perdure.payload.codec import Codec
    from perdure.worker.context import JobContext

P = ParamSpec("P")
"""What the function is enqueued with."""
Q = ParamSpec("Q")
"""What the function is called with: the same, and perhaps a context."""
R = TypeVar("R")
"""The result of a run."""
C = TypeVar("C")
"""What a direct call returns: the result, or a coroutine of it."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    D_co = WithDefault("D_co", covariant=True, default=Any)
else:
    D_co = TypeVar("D_co", covariant=True)

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
Isolation = Literal["process"]
INNER = frozenset(("codec", "defaults", "draft", "is_async", "load", "names", "place", "upgraded", "upgrades"))
"""What a kind has for the package's own parts; users are not shown it."""


class Draft(NamedTuple, Generic[D_co]):
    """A job that is not enqueued yet: made by `new`, taken by `app.enqueue_many`, `app.supersede` and flows.

    `Draft[int]` is one of a function that returns an int; `Draft` alone is any.
    """

    kind: Kind[..., Any, ..., Any]
    arguments: Mapping[str, Any]
    options: Options
    plan: Plan

    def __repr__(self) -> str:
        return f"<Draft of {self.kind.name}>"  # the arguments may hold secrets


class Declaration(NamedTuple):
    """What `@app.job(…)` says of a kind besides its options."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    version: int = 1
    upgrades: Mapping[int, Upgrade] = {}
    isolation: Isolation | None = None

    @classmethod
    def checked(cls, name: object, aliases: object, version: object, upgrades: object, isolation: object) -> Self:
        """Raises InvalidInput for what no kind can have."""
        if upgrades is not None and not isinstance(upgrades, Mapping):
            must_be = "upgrades must be a dict from a version to a function, as in {1: function}"
            raise InvalidInput(f"{must_be}; not {shown(upgrades)}", code="version_invalid")
        if isolation is not None:
            besides = ", or left out for a thread or the event loop"
            check_choice(isolation, "isolation", get_args(Isolation), besides=besides)
        return cls(
            None if name is None else check_name(name, "the kind's name"),
            check_names(aliases, "aliases", lambda alias: check_name(alias, "an alias"), code="name_invalid"),
            check_whole(version, "version", code="version_invalid", error=InvalidInput),
            dict(cast("Mapping[int, Upgrade]", upgrades or {})),
            cast("Isolation | None", isolation),
        )


class Bound(Generic[P, R]):
    """A kind with options: what `kind.options(…)` gives."""

    def __init__(self, kind: Kind[P, R, ..., Any], options: Options) -> None:
        self._kind = kind
        self._options = options
        self._plan = options.plan(kind.names, kind.version, kind.app.owner)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue one job. When this returns, the job is durable (with `tx=`: once you commit)."""
        kind = self._kind
        return kind.app.enqueue_arguments(kind, kind.codec.bind(args, kwargs), self._options, self._plan)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for coroutines."""
        return await self._kind.app.aenqueue_draft(self.new(*args, **kwargs))

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Enqueue one job for each set of arguments, all in one transaction or none."""
        return self._kind.app.enqueue_many(self._drafts(arguments))

    async def aenqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Job]:
        """`enqueue_many` for coroutines."""
        return await self._kind.app.aio.enqueue_many(self._drafts(arguments))

    def _drafts(self, arguments: Iterable[Mapping[str, Any]]) -> list[Draft]:
        return [self.draft(one) for one in check_list(arguments, "a list of arguments, one dict each")]

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Draft[R]:
        """A job for `app.enqueue_many`, `app.supersede` or a flow. Its arguments are checked when it is enqueued."""
        return self.draft(self._kind.codec.bind(args, kwargs))

    def options(self, **changes: Unpack[OptionFields]) -> Bound[P, R]:
        """The same kind with other options, for one or more jobs."""
        options = self._options.changed(for_a_job(changes))
        if changes.get("limit") is not None or changes.get("rate") is not None:
            self._kind.app.kinds.require_declared(options.rules, self._kind.name)
        return Bound(self._kind, options)

    def draft(self, arguments: Mapping[str, Any]) -> Draft[R]:
        """Like `new`, from arguments by name."""
        return Draft(self._kind, arguments, self._options, self._plan)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


class Kind(Bound[P, R], Lazy, Generic[P, R, Q, C]):
    """A function whose calls can be enqueued as jobs, with the options it was declared with. Called directly, it is
    the function itself."""

    def __init__(
        self, app: Perdure, function: Callable[Q, C], declared: Declaration, defaults: Options, context_type: type
    ) -> None:
        self.app = app
        """The app that it was declared on."""
        self.function: Callable[Q, C] = _checked_function(function)
        """The function itself, without middleware and time-out."""
        function = self.function
        self.name = _name_of(function) if declared.name is None else declared.name
        """What its jobs are stored under."""
        self.aliases = declared.aliases
        """Earlier names, whose jobs it runs too."""
        self.version = declared.version
        """Of its arguments; raised with `upgrades=`."""
        self.upgrades = declared.upgrades
        self.isolation = declared.isolation
        """process: each job runs in a child process. None: in a thread, or on the event loop."""
        self.defaults = defaults
        self._context_type = context_type
        self.is_async = is_coroutine_function(function)
        """It runs on the event loop. A function that is not async may still return a coroutine, which is awaited."""
        super().__init__(cast("Kind[P, R, ..., Any]", self), defaults)
        update_wrapper(self, function, WRAPPER_ASSIGNMENTS, updated=())
        for note, value in vars(function).items() if inspect.isfunction(function) else ():
            if not hasattr(type(self), note):
                self.__dict__.setdefault(note, value)  # attributes set on the function, but never over our own

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C:
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            own = self.__dict__.get("name", "kind")
            refuse(self, name, {word: text.format(name=own) for word, text in OF_A_KIND.items()}, "a kind")

    def wait(self, job: Job | UUID | str, timeout: Span | None = None) -> R:
        """Wait for the job's end and return its result. JobFailed: it ended without one. WaitTimeout: it continues."""
        return self.result(self.app.wait(job, timeout))

    async def await_(self, job: Job | UUID | str, timeout: Span | None = None) -> R:
        """`wait` for coroutines; `await` alone is a word of Python."""
        return self.result(await self.app.aio.wait(job, timeout))

    def result(self, job: Job) -> R:
        """The result of a job that has ended, as the function returned it; `job.result` is the same as JSON data.

        Reads nothing: it is about the job as it was read. JobFailed: it ended without a result. WaitTimeout: it had not
        ended. KindError: it is of another kind.
        """
        if not isinstance(cast("object", job), Job):
            raise InvalidInput(
                f"{self.name}.result takes a job as app.get and app.wait return it, not {shown(job)}; by id:"
                f" {self.name}.wait(id)",
                code="job_invalid",
            )
        if job.kind not in self.names:
            raise KindError(
                f"job {job.id} is of kind {job.kind!r}, not {self.name!r}; ask that kind for its result",
                code="kind_other",
            )
        if not job.is_final:
            raise WaitTimeout(
                f"job {job.id} ({job.kind}) was {job.state} when it was read, and has no result yet; wait for it with"
                f" {self.name}.wait(job)"
            )
        return cast("R", self.codec.decode_result(job.ended_well().row.result))

    @lazy
    def codec(self) -> Codec:
        """Built on first use: annotations may name things defined later in the module."""
        from perdure.payload.codec import Codec

        return Codec(self.function, self.name, self._context_type, max_bytes=self.app.config.max_payload_bytes)

    def load(self, payload: str, secrets: str | None, version: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored job, upgraded to this version and checked, to call the function with."""
        if version < self.version and self.upgrades:
            payload = self.upgraded(payload, version)
        return self.codec.decode(payload, secrets)

    def upgraded(self, payload: str, version: int) -> str:
        """Stored arguments of an older version, as this version has them."""
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
        """The file and line of the function, for messages."""
        return place_of(self.function)

    def __repr__(self) -> str:
        return f"<Kind {self.name} version {self.version} from {self.place}>"


class Declare(Protocol):
    """The decorator that `app.job(…)` returns: gives a kind with the function's own types, without the context."""

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


def no_draft(given: object) -> InvalidInput:
    """The error for what `kind.new` did not make, with what to write instead."""
    match given:
        case Bound():
            name = cast("Bound[..., Any]", given)._kind.name  # pyright: ignore[reportPrivateUsage] - its own module
            said = f"the kind {name} itself; write {name}.new(…)"
        case Job():
            said = f"job {given.id}, which is enqueued already; write {given.kind}.new(…) instead of .enqueue(…)"
        case list() | tuple():
            said = "a list; give the jobs one by one, with * before a list of them"
        case Mapping():
            said = f"{shown(cast('object', given))}; kind.enqueue_many takes dicts of arguments"
        case _:
            said = f"{shown(given)}; name the kind and its arguments, as in send.new(to)"
    return InvalidInput(f"expected jobs made by kind.new(…), not {said}", code="draft_invalid")


def _checked_function(function: object) -> Callable[..., Any]:
    """The function to call for a job. KindError: it cannot be one."""
    if isinstance(function, staticmethod):
        function = cast("staticmethod[..., Any]", function).__func__
    if isinstance(function, Kind):  # of another app
        function = cast("Kind[..., Any, ..., Any]", function).function
    if isinstance(function, classmethod):
        raise KindError(
            "a classmethod cannot be called before its class exists; declare it below the class, as in"
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
                f"{place_of(function)} is a generator: calling it runs nothing, and nobody would read what it yields;"
                " do the work in the function, and return a list"
            )


def _name_of(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise KindError(
            f"{shown(function)} ({place_of(function)}) has no name; give it one with app.job(name=…)",
            code="kind_invalid",
        )
    return check_name(name, "the kind's name")


def place_of(function: Callable[..., Any]) -> str:
    """The file and line; of an object that says in whose place it is called (`__perdure_calls__`), that function's."""
    code = getattr(innermost(getattr(function, "__perdure_calls__", function)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else shown(function)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call surely returns a coroutine. If a decorator turned it into a normal function, it does not count as
    one, whatever it wraps."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_of(function))


def _given(function: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments that `functools.partial` has set: two partials of one function are different kinds."""
    given: list[str] = []
    while isinstance(function, partial):
        given += [shown(function.args), shown(function.keywords)]
        function = function.func
    return tuple(given)


def _meaning(rule: Rule) -> tuple[object, ...]:
    return rule.sort, rule.most, rule.per_us, rule.burst


class Registry:
    """The kinds of one app by name and alias."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind[..., Any, ..., Any]] = {}
        self._rules: dict[str, tuple[Rule, str]] = {}
        """The limits by name, and who declared each first: a kind, or the app itself ("")."""

    def add(self, kind: Kind[..., Any, ..., Any]) -> None:
        """Add a kind. The same name from two places is refused; the same place again is a module reload."""
        for name in kind.names:
            known = self._kinds.get(name)
            if known is not None and (known.place, _given(known.function)) != (kind.place, _given(kind.function)):
                raise KindError(
                    f"two functions are declared as kind {name!r}: {known.place} and {kind.place}; give one of them"
                    " another name with @app.job(name=…)",
                    code="kind_duplicate",
                )
        self._add_rules(kind.defaults.rules, kind.name)
        for name in kind.names:
            self._kinds[name] = kind

    def declare_limits(self, rules: Sequence[Rule]) -> None:
        """Limits that no kind names."""
        for rule in rules:
            if not isinstance(cast("object", rule), (Limit, Rate)):
                raise InvalidOption(
                    f"app.limits.declare takes limits one by one, as in declare(Limit('gpu', 4)), not {shown(rule)}",
                    code="limit_rule_invalid",
                )
            if rule.name is None:
                raise InvalidOption("a limit that belongs to no kind needs a name", code="limit_rule_invalid")
            self._add_rules([rule], "")

    def _add_rules(self, rules: Sequence[Rule], source: str) -> None:
        """The same name with another meaning is refused, unless it is the same kind again (a reload)."""
        for rule in rules:
            name = name_for(rule, source)
            known, declared_by = self._rules.get(name, (rule, source))
            if _meaning(known) != _meaning(rule) and (declared_by != source or not source):
                raise KindError(
                    f"limit {name!r} is declared twice with different numbers: {known} by {declared_by or 'the app'},"
                    f" and {rule} by {source or 'the app'}; declare it once, as in API = Limit({name!r}, 5)",
                    code="limit_conflict",
                )
        self._rules |= {name_for(rule, source): (rule, source) for rule in rules}

    def require_declared(self, rules: Sequence[Rule], kind: str) -> None:
        """Refuse a limit of a single job that no worker would tell the database of."""
        for rule in rules:
            name = name_for(rule, kind)
            known = self._rules.get(name)
            if known is None or _meaning(known[0]) != _meaning(rule):
                what = "is not declared" if known is None else f"is declared as {known[0]}"
                raise InvalidOption(
                    f"limit {name!r} {what}; a limit of a single job must be that of a kind (@app.job(limit=…)), or be"
                    " declared once with app.limits.declare(…), so that workers know it",
                    code="limit_undeclared",
                )

    def rule(self, name: str) -> Rule | None:
        """What this limit means to the code. None: this code does not declare it; that of another program may."""
        known = self._rules.get(name)
        return None if known is None else known[0]

    def rules(self) -> list[tuple[str, Rule, list[str]]]:
        """All limits and rates with their names, and the kinds that have them; those of the app itself have none."""
        users: dict[str, list[str]] = {name: [] for name in self._rules}
        for kind in self:
            for rule in kind.defaults.rules:
                users[name_for(rule, kind.name)].append(kind.name)
        return [
            (name, rule, users[name])
            for name, (rule, source) in sorted(self._rules.items())
            if users[name] or not source
        ]

    def get(self, name: str) -> Kind[..., Any, ..., Any]:
        kind = self.find(name)
        if kind is None:
            raise self._unknown(name)
        return kind

    def _unknown(self, name: object) -> KindError:
        from difflib import get_close_matches

        if isinstance(name, Kind):
            written = cast("Kind[..., Any, ..., Any]", name).name
            hint = f"expected the name of a kind, not the kind itself; write {written}.enqueue(…), or {written!r}"
            return KindError(hint, code="kind_unknown")
        near = get_close_matches(name[:NAME_LIMIT], list(self._kinds), n=1) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "import the module that declares it first"
        return KindError(f"no kind is called {shown(name)} here; {hint}", code="kind_unknown")

    def find(self, name: object) -> Kind[..., Any, ..., Any] | None:
        return self._kinds.get(name) if isinstance(name, str) else None

    def meant_by(self, name: str | None) -> tuple[str | None, ...]:
        """The stored names that a filter for this name means: for a kind's current name all its names, else only the
        name itself."""
        kind = self.find(name)
        return kind.names if kind is not None and kind.name == name else (name,)

    def versions(self) -> dict[str, int]:
        """What this process can run: every name and alias, with the newest version it has."""
        return {name: kind.version for name, kind in self._kinds.items()}

    def __iter__(self) -> Iterator[Kind[..., Any, ..., Any]]:
        return iter(dict.fromkeys(self._kinds.values()))
