"""What users hold of a job or flow that is planned: its id, references to its result, conditions on it.

Made by `workflow`; read by `options` and `enqueue`, which turn references into edges and the JSON of `job/references`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, TypeVar, cast
from uuid import UUID

from perdure.errors import InvalidInput, shown
from perdure.ids import to_uuid
from perdure.job.flow import Edge
from perdure.job.model import NewJob
from perdure.job.references import SUMMARY, TRUE, Part, Tree, reference, waiting_for, with_condition
from perdure.names import public

MOST_REFERENCES = 1_000
"""Results that one job may take as arguments; more are read with `ctx.results`."""
INNER = frozenset(("filled_in", "raw_id", "tree"))
"""What these have for the package's own parts; users are not shown it."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Placeholder = Literal["previous", "each"]


@dataclass(frozen=True)
class Outcome:
    """How a job ended, as an argument: `tidy.new(how=rows.outcome)` for a handler that takes `how: Outcome`."""

    state: str
    """completed, failed, cancelled or skipped."""
    result: Any = None
    """What it returned, as JSON data. None: nothing, or it has not completed."""
    error_type: str | None = None
    """The class of its last error, as text. None: it has none."""
    error: str | None = None
    """What the error said."""


_FIELDS = frozenset(field.name for field in fields(Outcome))


class Condition:
    """What must hold for a job to run: `size.result > 10`, joined with `&`, `|` and `~`. Data, never code."""

    __slots__ = ("tree",)

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __and__(self, other: object) -> Condition:
        return Condition({"all": [self.tree, condition_of(other).tree]})

    def __or__(self, other: object) -> Condition:
        return Condition({"any": [self.tree, condition_of(other).tree]})

    def __invert__(self) -> Condition:
        return Condition({"not": self.tree})

    def __bool__(self) -> bool:
        raise InvalidInput(
            "a condition on a result is decided when the job may start, not now; give it to wf.add(…, when=…) or"
            " wf.choose(…), and join conditions with &, | and ~ instead of and, or and not",
            code="condition_invalid",
        )

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        return "<Condition>"


class Reference:
    """The result of a planned job, or a part of it, before it is known.

    As an argument it makes the job wait for the other; it is read when the job starts, and validated then. `[]` takes a
    part; comparisons make conditions.
    """

    __slots__ = ("_at", "_get", "_name", "_of")

    def __init__(self, of: bytes | Placeholder, get: Part, at: tuple[str | int, ...] = (), name: str | None = None):
        self._of: bytes | Placeholder = of
        self._get: Part = get
        self._at = at
        self._name = name

    @property
    def tree(self) -> Tree:
        if isinstance(self._of, str):
            where = "wf.map" if self._of == "each" else "app.chain and wf.chain, after the first job"
            raise InvalidInput(f"{self._of} has a meaning only in {where}; not here", code="reference_invalid")
        return reference(self._of, self._get, self._at, self._name)

    def filled_in(self, values: Mapping[str, object]) -> object:
        """What stands in its place, if it is a placeholder that has a value here; else itself."""
        if not isinstance(self._of, str) or self._of not in values:
            return self
        value: Any = values[self._of]
        for key in self._at:
            try:
                value = value[key]
            except (TypeError, LookupError):
                hint = f"{self._of} has no part {key!r} here: {shown(value)}"
                raise InvalidInput(hint, code="reference_invalid") from None
        return value

    def __getitem__(self, key: str | int) -> Reference:
        if isinstance(key, bool) or not isinstance(cast("object", key), (str, int)):
            raise InvalidInput(
                f"a part of a result is named by text or a whole number, not by {shown(key)}", code="reference_invalid"
            )
        return Reference(self._of, self._get, (*self._at, key), self._name)

    def __iter__(self) -> Iterator[object]:
        raise self._unknown("gone through")

    def __bool__(self) -> bool:
        raise self._unknown("asked whether it is true")

    def __str__(self) -> str:
        raise self._unknown("written into a text")

    def __format__(self, spec: str) -> str:
        raise self._unknown("written into a text")

    def __len__(self) -> int:
        raise self._unknown("counted")

    def _computed(self, *_others: object) -> Any:
        raise self._unknown("computed with")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _computed
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _computed
    __neg__ = __pos__ = __abs__ = __round__ = __int__ = __float__ = __index__ = _computed

    def _unknown(self, what: str) -> InvalidInput:
        return InvalidInput(
            f"the result of {self._name or 'a planned job'} is not known yet, so it cannot be {what}; give it as an"
            " argument as it is, take a part of it with [], or compare it in when=",
            code="reference_invalid",
        )

    def _compared(self, sign: str, other: object) -> Condition:
        if isinstance(other, Reference):
            return Condition({"left": self.tree, "is": sign, "right": other.tree})
        return Condition({"left": self.tree, "is": sign, "value": json_value(other, "a condition compares with")})

    def __eq__(self, other: object) -> Any:
        return self._compared("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Condition:
        return self._compared("<", other)

    def __le__(self, other: object) -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Condition:
        return self._compared(">=", other)

    def __and__(self, other: object) -> Condition:
        return condition_of(self) & other

    def __or__(self, other: object) -> Condition:
        return condition_of(self) | other

    def __invert__(self) -> Condition:
        return ~condition_of(self)

    __hash__ = None  # type: ignore[assignment]  # == makes a condition

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there. An outcome has fields; what a result has, nobody knows."""
            if name in _FIELDS and self._get == "outcome" and not self._at:
                return self[name]
            hint = "a result has no attributes before it is known; take a part of it with [], as in rows.result['size']"
            raise AttributeError(f"{hint} (tried {name!r})", name=name)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        path = "".join(f"[{key!r}]" for key in self._at)
        return f"<{self._get}{path} of {self._name or self._of!r}>"


previous: Any = Reference("previous", "result", name="previous")
"""In `app.chain`: the result of the job before."""
each: Any = Reference("each", "result", name="each")
"""In `wf.map`: one of the values; `each["id"]` is a part of it."""


class Awaited:
    """What a job can wait for: `after=` takes it."""

    __slots__ = ()

    @property
    def raw_id(self) -> bytes:
        raise NotImplementedError

    @property
    def id(self) -> UUID:
        """Known from the start, before it is written."""
        return to_uuid(self.raw_id)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


class Planned(Awaited, Generic[T_co]):
    """A job that is planned, or was added: its `id`, and its `result` and `outcome` for others that wait for it."""

    __slots__ = ("_raw_id", "kind")

    def __init__(self, raw_id: bytes, kind: str) -> None:
        self._raw_id = raw_id
        self.kind = kind
        """The name of its kind."""

    @property
    def raw_id(self) -> bytes:
        return self._raw_id

    @property
    def result(self) -> T_co:
        """What the job will return. A job that takes it as an argument waits for it. `[]` takes a part."""
        return cast("T_co", Reference(self.raw_id, "result", name=self.kind))

    @property
    def outcome(self) -> Outcome:
        """How it will end, well or not: state, result, error_type, error."""
        return cast("Outcome", Reference(self.raw_id, "outcome", name=self.kind))

    def __repr__(self) -> str:
        return f"<Planned {self.kind} {self.id}>"


class Summary:
    """The counts of a flow at its end, for conditions: `parts.summary.success_rate >= 0.95`."""

    __slots__ = ("_name", "_of")

    if TYPE_CHECKING:
        total: int
        completed: int
        failed: int
        cancelled: int
        skipped: int
        success_rate: float
        """Completed members, of those that completed, failed or were cancelled: from 0 to 1."""
        attempts: int
        run_ms: int
        wait_ms: int

    def __init__(self, of: bytes, name: str) -> None:
        self._of = of
        self._name = name

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Reference:
            if name not in SUMMARY:
                raise AttributeError(f"a flow has no count {name!r}; it has {', '.join(SUMMARY)}", name=name)
            return Reference(self._of, "summary", (name,), self._name)

    def __dir__(self) -> list[str]:
        return list(SUMMARY)


class FlowHandle(Awaited):
    """A flow, planned or existing."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """As it is called. Not unique."""
        raise NotImplementedError

    @property
    def summary(self) -> Summary:
        """Its counts at its end, for conditions."""
        return Summary(self.raw_id, self.name)


# -- what users gave, as data ----------------------------------------------------------------------------------------


def condition_of(value: object) -> Condition:
    """A condition, or a reference that must be true."""
    if isinstance(value, Condition):
        return value
    if isinstance(value, Reference):
        return Condition({"left": value.tree, "is": TRUE})
    raise InvalidInput(
        f"a condition compares the result of a planned job, as in size.result > 10; {shown(value)} is none",
        code="condition_invalid",
    )


def first_that_holds(conditions: Iterable[Condition]) -> Iterator[Condition]:
    """For each of these: it holds, and none before it does. The last one: none of them holds."""
    before: list[Tree] = []
    for one in conditions:
        yield Condition({"all": [{"none": list(before)}, one.tree]}) if before else one
        before.append(one.tree)
    yield Condition({"none": before})


def json_value(value: object, what: str) -> Any:
    """The value as JSON data that reads back as the same."""
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidInput(f"{what} text, numbers, booleans, None, lists and dicts, not {shown(value)}", code="not_json")


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))


def _is_dict(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, dict)


def refers(value: object) -> bool:
    """Whether there is a reference in it."""
    return any(True for _ in references_in(value))


def references_in(value: object) -> Iterator[Reference]:
    """Raises InvalidInput where a job or a flow itself stands instead of its result."""
    if isinstance(value, (Reference, Awaited)):
        yield _reference(value)
    elif _is_list(value):
        for part in value:
            yield from references_in(part)
    elif _is_dict(value):
        yield from references_in(list(value.values()))


def _reference(value: Reference | Awaited) -> Reference:
    if isinstance(value, Reference):
        return value
    instead = "let the job wait for it with after=, and read ctx.results(…) in the handler"
    if isinstance(value, Planned):
        instead = "give its .result, or its .outcome"
    raise InvalidInput(f"{value!r} cannot be an argument; {instead}", code="reference_invalid")


def replaced(value: object, change: Callable[[Reference], object]) -> object:
    """The same value with other things in the place of its references."""
    if isinstance(value, Reference):
        return change(value)
    if _is_list(value):
        return [replaced(part, change) for part in value]
    if _is_dict(value):
        return {key: replaced(part, change) for key, part in value.items()}
    return value


def with_values(arguments: Mapping[str, object], **values: object) -> dict[str, object]:
    """Arguments whose placeholders have these values."""
    return {
        name: replaced(value, lambda found: found.filled_in(values)) if refers(value) else value
        for name, value in arguments.items()
    }


def tree_of(value: object) -> Tree:
    """An argument that has references in it, as `job/references` keeps it."""
    if isinstance(value, Reference):
        return value.tree
    if _is_list(value) and refers(value):
        return {"list": [tree_of(part) for part in value]}
    if _is_dict(value) and refers(value):
        return {"map": {json_value(key, "keys are"): tree_of(part) for key, part in value.items()}}
    return {"value": json_value(value, "beside results in one argument stand only")}


def waiting(new: NewJob, edges: Sequence[Edge], when: object) -> NewJob:
    """The same job with what it was told to wait for, and its condition."""
    refs = new.refs if when is None else with_condition(new.refs, condition_of(when).tree)
    if refs is not None or new.after:
        return waiting_for(new, edges, refs)
    return new.with_parents(tuple(edges), None) if edges else new
