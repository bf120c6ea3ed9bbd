"""`Limit` and `Rate`: how much at once, as users write it on a kind or a job. Used by `options`; `needs` makes of them
what a job carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, overload

from perdure.checks import ABOVE_ZERO, Span, check_choice, check_name, check_span, check_whole, refused
from perdure.errors import InvalidOption, shown
from perdure.limit.key import AND, BETWEEN, Need, key_of, needs_of, written
from perdure.limit.room import Sort

NAME_LIMIT = 100
HEAVIEST = 1_000_000
AT_MOST = 10**12
MOST_OF_A_JOB = 4
"""So many limits and rates a job may have together."""

Algorithm = Literal["sliding", "fixed", "bucket"]
Pick = str | Callable[[Mapping[str, Any]], Any]
"""An argument by its name, or by a path such as "order.tenant", or a function of all arguments as JSON data."""


@dataclass(frozen=True, init=False, slots=True)
class Limit:
    """So many jobs at once, over all workers.

    `Limit(5)` counts the jobs of a kind, `Limit("api", 5)` all jobs that name "api". `by`: every value of this argument
    counts for itself. `weight`: how many places a job takes, a number or where to find it.
    """

    name: str | None
    most: int
    by: Pick | None
    weight: int | Pick

    @overload
    def __init__(self, most: int, /, *, by: Pick | None = None, weight: int | Pick = 1) -> None: ...
    @overload
    def __init__(self, name: str, most: int, /, *, by: Pick | None = None, weight: int | Pick = 1) -> None: ...

    def __init__(
        self, name: str | int, most: int | None = None, /, *, by: Pick | None = None, weight: int | Pick = 1
    ) -> None:
        _fill(self, "Limit", name, most, by, weight)

    @property
    def sort(self) -> Sort:
        return Sort.AT_ONCE

    @property
    def per_us(self) -> int | None:
        return None

    @property
    def burst(self) -> int | None:
        return None


@dataclass(frozen=True, init=False, slots=True)
class Rate:
    """So many starts of jobs in any time of `per` seconds, over all workers.

    `algorithm`: "sliding" is exact for every window; "fixed" counts in windows by the clock, so that around the change
    of two there may be twice as many; "bucket" spreads the starts evenly, but for a `burst` (without it as many as
    `most`). `by` and `weight` as for a Limit.
    """

    name: str | None
    most: int
    per: Span
    by: Pick | None
    weight: int | Pick
    algorithm: Algorithm
    burst: int | None

    @overload
    def __init__(
        self,
        most: int,
        /,
        *,
        per: Span,
        by: Pick | None = None,
        weight: int | Pick = 1,
        algorithm: Algorithm = "sliding",
        burst: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        most: int,
        /,
        *,
        per: Span,
        by: Pick | None = None,
        weight: int | Pick = 1,
        algorithm: Algorithm = "sliding",
        burst: int | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str | int,
        most: int | None = None,
        /,
        *,
        per: Span,
        by: Pick | None = None,
        weight: int | Pick = 1,
        algorithm: Algorithm = "sliding",
        burst: int | None = None,
    ) -> None:
        _fill(self, "Rate", name, most, by, weight)
        check_span(per, "Rate(per=)", ABOVE_ZERO, 10**9, must_be="seconds, more than 0, or a timedelta", code=_CODE)
        check_choice(algorithm, "Rate(algorithm=)", get_args(Algorithm), code=_CODE)
        if burst is not None:
            if algorithm != "bucket":
                raise InvalidOption('burst= belongs to Rate(…, algorithm="bucket")', code=_CODE)
            check_whole(burst, "Rate(burst=)", 1, AT_MOST, code=_CODE)
        for field, value in (("per", per), ("algorithm", algorithm), ("burst", burst)):
            object.__setattr__(self, field, value)

    @property
    def sort(self) -> Sort:
        return Sort(self.algorithm)

    @property
    def per_us(self) -> int | None:
        seconds = check_span(self.per, "Rate(per=)", ABOVE_ZERO, 10**9)
        return max(1, round(seconds * 1_000_000))


Rule = Limit | Rate
_CODE = "limit_rule_invalid"


def _fill(rule: Rule, what: str, name: object, most: object, by: object, weight: object) -> None:
    per = "" if what == "Limit" else ", per=60"
    if most is None and isinstance(name, str):
        raise InvalidOption(f"{what}({name!r}) has no number; write {what}({name!r}, 5{per})", code=_CODE)
    if isinstance(most, str) and isinstance(name, int):
        raise InvalidOption(
            f"{what}({name!r}, {most!r}): the name comes first; write {what}({most!r}, {name}{per})", code=_CODE
        )
    if most is None:
        name, most = None, name
    if name is not None:
        checked = check_name(name, f"the name of a {what}", NAME_LIMIT)
        if any(mark in checked for mark in (BETWEEN, AND, "*")):
            raise refused(f"the name of a {what}", "text without * and control characters", name, code=_CODE)
    check_whole(most, f"{what}: how many", 1, AT_MOST, code=_CODE)
    if by is not None and not isinstance(by, str) and not callable(by):
        raise refused(
            f"{what}(by=)", 'the name of an argument, a path such as "order.tenant", or a function', by, code=_CODE
        )
    if isinstance(weight, int):
        check_whole(weight, f"{what}(weight=)", 1, HEAVIEST, code=_CODE)
    elif not isinstance(weight, str) and not callable(weight):
        raise refused(
            f"{what}(weight=)", "a whole number, the name of an argument, a path, or a function", weight, code=_CODE
        )
    for field, value in (("name", name), ("most", most), ("by", by), ("weight", weight)):
        object.__setattr__(rule, field, value)


def listed(limits: object, rates: object) -> tuple[Rule, ...]:
    """The rules of a job. Raises InvalidOption for what is none, for too many, and for the same name twice."""
    rules = (*_each(limits, "limit", Limit), *_each(rates, "rate", Rate))
    if len(rules) > MOST_OF_A_JOB:
        raise InvalidOption(f"a job has at most {MOST_OF_A_JOB} limits and rates, not {len(rules)}", code=_CODE)
    names = [(rule.name, rule.name is None and type(rule)) for rule in rules]
    twice = next((rule for rule, name in zip(rules, names, strict=True) if names.count(name) > 1), None)
    if twice is not None:
        which = f"named {twice.name!r}" if twice.name else "without a name"
        raise InvalidOption(f"a job cannot have two limits {which}; give each its own name", code=_CODE)
    return rules


def _each(given: object, option: str, sort: type[Rule]) -> list[Rule]:
    if given is None:
        return []
    values = list(cast("Iterable[object]", given)) if isinstance(given, (list, tuple)) else [given]
    for value in values:
        if not isinstance(value, sort):
            raise refused(
                f"{option}=", f"a {sort.__name__}(…), or a list of them", value, code=_CODE, hint=_meant(option, value)
            )
    return cast("list[Rule]", values)


def _meant(option: str, value: object) -> str:
    if isinstance(value, (Limit, Rate)):
        return f"; write {'limit' if isinstance(value, Limit) else 'rate'}= for it"
    if isinstance(value, int):
        return f"; write {option}=Limit({value})" if option == "limit" else f"; write rate=Rate({value}, per=60)"
    return "; write rate=Rate(100, per=60) for 100 in a minute" if option == "rate" else ""


def name_for(rule: Rule, kind: str) -> str:
    """The name of a rule on this kind: its own, or one after the kind."""
    if rule.name is not None:
        return rule.name
    return kind if isinstance(rule, Limit) else f"{kind}:rate"


def needs(rules: Sequence[Rule], kind: str, payload: str) -> str | None:
    """What a job of this kind with these arguments carries. Raises InvalidOption where they do not say."""
    found: list[Need] = []
    arguments: Mapping[str, Any] | None = None
    for rule in rules:
        weight = rule.weight
        if rule.by is not None or not isinstance(weight, int):
            arguments = arguments if arguments is not None else cast("dict[str, Any]", json.loads(payload))
        name = name_for(rule, kind)
        if rule.by is None:
            key = key_of(name, has_value=False)
        else:
            key = key_of(name, _picked(rule.by, arguments or {}, name, kind, "by"))
        if not isinstance(weight, int):
            weight = _weight(_picked(weight, arguments or {}, name, kind, "weight"), name)
        found.append(Need(key, weight))
    return written(found)


def needs_anew(carried: str | None, rules: Sequence[Rule], kind: str, before: str, after: str) -> str | None:
    """What a job carries when its arguments change: what these rules gave it for the old ones, as they give it for the
    new ones. The rest stays, such as the key of its flow, and that of a rule that nobody has any more."""
    texts: list[str] = []
    for need in needs_of(carried):
        text = written([need])
        rule = next((rule for rule in rules if _gives(rule, kind, before) == text), None)
        texts.append((text if rule is None else needs([rule], kind, after)) or "")
    return AND.join(texts) or None


def _gives(rule: Rule, kind: str, payload: str) -> str | None:
    try:
        return needs([rule], kind, payload)
    except InvalidOption:
        return None


def is_fixed(rules: Sequence[Rule]) -> bool:
    """Whether all jobs with these rules carry the same."""
    return all(rule.by is None and isinstance(rule.weight, int) for rule in rules)


def _picked(pick: Pick, arguments: Mapping[str, Any], name: str, kind: str, option: str) -> Any:
    if not isinstance(pick, str):
        return _called(pick, arguments, name, kind, option)
    value: Any = arguments
    for part in pick.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise InvalidOption(
                f"limit {name!r} ({option}={pick!r}): this job was enqueued without that argument (or it is secret);"
                " pass it, or limit the job by something else",
                code="limit_argument_missing",
            )
        value = cast("Mapping[str, Any]", value)[part]
    return value


def _called(
    pick: Callable[[Mapping[str, Any]], Any], arguments: Mapping[str, Any], name: str, kind: str, option: str
) -> Any:
    try:
        return pick(arguments)
    except Exception as error:
        raise InvalidOption(
            f"limit {name!r} of kind {kind!r}: {option}={getattr(pick, '__qualname__', shown(pick))} raised"
            f" {type(error).__name__}: {error}; it is given the arguments of the job as JSON data, without secret ones,"
            " and must return a value for every job",
            code="limit_function_failed",
        ) from error


def _weight(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= HEAVIEST:
        raise InvalidOption(
            f"limit {name!r}: a job's weight must be a whole number from 1 to {HEAVIEST}, not {shown(value)}",
            code=_CODE,
        )
    return value
