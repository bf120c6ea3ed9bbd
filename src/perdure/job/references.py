"""What a job takes from others: arguments that are their results, and the condition under which it runs.

Stored as JSON text in `NewJob.refs`. Conditions are data: who, which value, an operator, a value. Written by `enqueue`
and `workflow`; read by the store when all that a job waits for has ended, and by the worker before it decodes.

```text
refs       {"args": {argument: tree}, "when": condition}                both optional
tree       reference | {"list": [tree]} | {"map": {key: tree}} | {"value": JSON}
reference  {"of": id, "get": "result" | "outcome" | "summary", "at": [key or index], "name": for people}
condition  {"left": reference, "is": "==" | "!=" | "<" | "<=" | ">" | ">=", "value": JSON  or  "right": reference}
           {"left": reference, "is": "true"} | {"all": [condition]} | {"any": […]} | {"none": […]} | {"not": condition}
```
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from perdure.errors import shown
from perdure.job.flow import Edge, FlowRow, NeedsName, Source
from perdure.job.model import NewJob

Tree = dict[str, Any]
"""A part of the JSON above."""
Part = Literal["result", "outcome", "summary"]
"""What is taken of a source: what a job returned, how it ended, or the counts of a flow."""

OPERATORS: Mapping[str, Callable[[Any, Any], object]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TRUE = "true"

Found = Mapping[bytes, Source]
"""What is known of the sources, by id."""


DAMAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a text raises that another program has written."""


class Unknown(LookupError):
    """A reference that leads nowhere: its source is gone or has not ended, or there is nothing at its path."""


def refs_text(args: Mapping[str, Tree], when: Tree | None) -> str | None:
    """The text of `NewJob.refs`. None: the job takes nothing from others."""
    parts: Tree = {}
    if args:
        parts["args"] = dict(args)
    if when is not None:
        parts["when"] = when
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")) if parts else None


def reference(of: bytes, get: Part, at: Sequence[str | int] = (), name: str | None = None) -> Tree:
    tree: Tree = {"of": of.hex(), "get": get}
    if at:
        tree["at"] = list(at)
    if name is not None:
        tree["name"] = name
    return tree


def waiting_for(new: NewJob, edges: Iterable[Edge], refs: str | None) -> NewJob:
    """The same job, which also waits for these, and for what it refers to. What `edges` say of a source counts."""
    named = {edge.depends_on: edge for edge in (*new.after, *edges)}
    implied = {} if refs is None else edges_of(refs)
    others = [Edge(source, needs) for source, needs in implied.items() if source not in named]
    return new.with_parents((*named.values(), *others), refs)


def with_condition(refs: str | None, when: Tree | None) -> str | None:
    """The same references, and this condition."""
    return refs if when is None else refs_text({} if refs is None else json.loads(refs).get("args", {}), when)


def sources_of(refs: str) -> set[bytes]:
    """The ids of the jobs and flows that it refers to; none where somebody has damaged the text."""
    try:
        return {bytes.fromhex(one["of"]) for one in _references(json.loads(refs))}
    except DAMAGE:
        return set()


def edges_of(refs: str) -> dict[bytes, NeedsName]:
    """What a job waits for because of them, unless it says otherwise: the success of those whose result it takes, the
    end of the others."""
    edges: dict[bytes, NeedsName] = {}
    for one in _references(json.loads(refs)):
        source = bytes.fromhex(one["of"])
        edges[source] = "success" if one["get"] == "result" else edges.get(source, "end")
    return edges


def has_condition(refs: str) -> bool:
    """Also where the text is damaged: then the condition does not hold."""
    try:
        return "when" in json.loads(refs)
    except DAMAGE:
        return True


def holds(refs: str, found: Found) -> bool:
    """Whether the condition holds; True where there is none. One that cannot be evaluated does not hold: a path that
    is missing, values that cannot be compared, a source that is gone, a text that somebody has damaged."""
    try:
        when = json.loads(refs).get("when")
        return when is None or _truth(when, found) is True
    except DAMAGE:
        return False


def why_not(refs: str, found: Found) -> str:
    """Why the condition does not hold, in plain words. Empty: it holds."""
    if holds(refs, found):
        return ""
    try:
        return f"its condition does not hold: {_reason(json.loads(refs)['when'], found)}"
    except DAMAGE:
        return "its condition cannot be read: another program has damaged it"


def filled(payload: str, refs: str, found: Found) -> str:
    """The payload with the arguments that come from others. Unknown: one of them cannot be found."""
    args = json.loads(refs).get("args")
    if not args:
        return payload
    arguments = json.loads(payload)
    arguments |= {name: _grown(tree, found) for name, tree in args.items()}
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def summary_of(row: FlowRow) -> dict[str, Any]:
    """The counts of a flow, by the names that conditions use."""
    counts: dict[str, Any] = {name: getattr(row, name) for name in SUMMARY if name != "success_rate"}
    return counts | {"success_rate": success_rate(row)}


SUMMARY = (
    "total", "completed", "failed", "cancelled", "skipped", "success_rate", "attempts", "run_ms", "wait_ms",
)  # fmt: skip
"""What conditions can ask of a flow."""


def success_rate(row: FlowRow) -> float:
    """How many of those that had to do something have done it, from 0 to 1. Skipped members do not count."""
    tried = row.completed + row.failed + row.cancelled
    return row.completed / tried if tried else 1.0


# -- values ----------------------------------------------------------------------------------------------------------


def _references(tree: object) -> Iterator[Tree]:
    if isinstance(tree, list):
        for part in cast("list[object]", tree):
            yield from _references(part)
    elif isinstance(tree, dict):
        node = cast("Tree", tree)
        if "of" in node:
            yield node
            return
        for name, part in node.items():
            if name != "value":  # what users gave, whatever it looks like
                yield from _references(part)


def _grown(tree: Tree, found: Found) -> object:
    if "of" in tree:
        return _value(tree, found)
    if "list" in tree:
        return [_grown(part, found) for part in tree["list"]]
    if "map" in tree:
        return {key: _grown(part, found) for key, part in tree["map"].items()}
    return tree["value"]


def _value(ref: Tree, found: Found) -> object:
    """What a reference refers to. Unknown: nothing."""
    source = found.get(bytes.fromhex(ref["of"]))
    if source is None or (source.state is None and source.counts is None):
        raise Unknown(f"{words(ref)} is not known: {_who(ref)} has not ended, or is gone")
    value = _taken(ref["get"], source)
    for key in ref.get("at", ()):
        try:
            value = cast("Any", value)[key]
        except (KeyError, IndexError, TypeError):
            raise Unknown(f"{words(ref)} is not there: there is no {shown(key)} in it") from None
    return value


def _taken(get: Part, source: Source) -> object:
    match get:
        case "summary":
            return {} if source.counts is None else summary_of(source.counts)
        case "outcome":
            outcome = {"state": source.state, "result": _result(source)}
            return outcome | {"error_type": source.error_type, "error": source.error}
        case _:
            return _result(source)


def _result(source: Source) -> object:
    return None if source.result is None else json.loads(source.result)


# -- conditions ------------------------------------------------------------------------------------------------------


class _Compared(NamedTuple):
    """A comparison: its answer (None: it cannot be made), and what it is or why it cannot be made."""

    truth: bool | None
    told: str


def _truth(when: Tree, found: Found) -> bool | None:
    """None: it cannot be evaluated. What is said with a part that cannot be evaluated holds only if that part does not
    matter."""
    match when:
        case {"all": parts}:
            answers = [_truth(part, found) for part in parts]
            return False if False in answers else None if None in answers else True
        case {"any": parts}:
            answers = [_truth(part, found) for part in parts]
            return True if True in answers else None if None in answers else False
        case {"none": parts}:
            return not any(_truth(part, found) is True for part in parts)
        case {"not": part}:
            answer = _truth(part, found)
            return None if answer is None else not answer
        case _:
            return _compared(when, found).truth


def _compared(when: Tree, found: Found) -> _Compared:
    try:
        left = _value(when["left"], found)
        if when["is"] == TRUE:
            return _Compared(bool(left), f"it is {shown(left)}")
        right = _value(when["right"], found) if "right" in when else when["value"]
    except Unknown as unknown:
        return _Compared(None, str(unknown))
    try:
        return _Compared(bool(OPERATORS[when["is"]](left, right)), f"it is {shown(left)}")
    except TypeError:
        return _Compared(None, f"{shown(left)} and {shown(right)} cannot be compared")


def _reason(when: Tree, found: Found) -> str:
    """Why this does not hold."""
    match when:
        case {"all": parts}:
            return _reason(next(part for part in parts if _truth(part, found) is not True), found)
        case {"any": parts}:
            return "; ".join(_reason(part, found) for part in parts)
        case {"none": parts}:
            holding = next(part for part in parts if _truth(part, found) is True)
            return f"{words_of(holding)} holds, and comes first"
        case {"not": part}:
            unknown = _truth(part, found) is None
            return _reason(part, found) if unknown else f"{words_of(part)} holds"
        case _:
            return f"{words_of(when)}, but {_compared(when, found).told}"


def words_of(when: Tree) -> str:
    """A condition as people write it."""
    match when:
        case {"all": parts}:
            return f"({' and '.join(map(words_of, parts))})"
        case {"any": parts}:
            return f"({' or '.join(map(words_of, parts))})"
        case {"none": parts}:
            return f"none of ({', '.join(map(words_of, parts))})"
        case {"not": part}:
            return f"not {words_of(part)}"
        case {"left": left, "is": "true"}:
            return words(left)
        case {"left": left, "is": sign, "right": right}:
            return f"{words(left)} {sign} {words(right)}"
        case _:
            return f"{words(when['left'])} {when['is']} {shown(when['value'])}"


def words(ref: Tree) -> str:
    """A reference as people read it: `measure.result['size']`, `parts.failed`."""
    path = ref.get("at", ())
    if ref["get"] == "summary":
        return ".".join((_who(ref), *path))
    return f"{_who(ref)}.{ref['get']}{''.join(f'[{key!r}]' for key in path)}"


def _who(ref: Tree) -> str:
    return str(ref.get("name") or ref["of"][-8:])
