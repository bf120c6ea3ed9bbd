"""Keys: one value of a limit, such as tenant 42, and the text in which a job carries the keys it needs. Used by
`limit.rule` (enqueue), by `limit.room` and `store.limit` (claim)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

BETWEEN = "\x1f"
"""Between the name of a limit and the value that the job has for it."""
AND = "\x1e"
"""Between the needs of a job."""
VALUE_LIMIT = 100
_SHOWN = 60
_FLOW = ""
"""No limit of a user has this name."""
_HEX = re.compile("[0-9a-f]{32}")
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)


class Need(NamedTuple):
    """A permit that a job needs to run: of which key, and how many of its places."""

    key: str
    weight: int


def key_of(name: str, value: object = None, *, has_value: bool = True) -> str:
    """The key of this value of a limit; without one, that of the limit itself.

    Values that are written the same (42 and "42") have one key. A long one, or one with control characters, is cut and
    followed by a digest of all of it.
    """
    if not has_value:
        return name
    text = value if isinstance(value, str) else _JSON.encode(value)
    if len(text) > VALUE_LIMIT or not text.isprintable():
        head = "".join(letter for letter in text[:_SHOWN] if letter.isprintable())
        text = f"{head}…{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    return f"{name}{BETWEEN}{text}"


def name_of(key: str) -> str:
    """The limit that a key belongs to."""
    return key.split(BETWEEN, 1)[0]


def bounds_of(name: str) -> tuple[str, str]:
    """Between these are the keys of all values of a limit, and nothing else, in the order of their bytes. The lower one
    is below that of the value "" too."""
    return name + AND, name + chr(ord(BETWEEN) + 1)


def value_of(key: str) -> str | None:
    """The value of a key as text. None: it is the key of a limit without `by`."""
    return key.split(BETWEEN, 1)[1] if BETWEEN in key else None


def shown(key: str) -> str:
    """For people: tenant=42; the key of a flow with its id as others show it."""
    flow_id = flow_of(key)
    return key.replace(BETWEEN, "=", 1) if flow_id is None else f"flow={UUID(bytes=flow_id)}"


def written(needs: Iterable[Need]) -> str | None:
    """The text in which a job carries its needs. None: it needs no permit."""
    return AND.join([f"{key}*{weight}" for key, weight in needs]) or None


@lru_cache(maxsize=4096)
def needs_of(text: str | None) -> Sequence[Need]:
    """The needs that `written` wrote. What another program has written counts as a key of weight 1."""
    return tuple([_need(part) for part in text.split(AND)]) if text else ()


def _need(part: str) -> Need:
    key, _, weight = part.rpartition("*")
    return Need(key, int(weight)) if key and weight.isascii() and weight.isdigit() else Need(part, 1)


def flow_key(flow_id: bytes) -> str:
    """The key of which the members of a flow need a permit, if only so many of them may run at once."""
    return f"{_FLOW}{BETWEEN}{flow_id.hex()}"


def flow_of(key: str) -> bytes | None:
    """The flow whose key this is. None: it is that of a limit."""
    name, between, value = key.partition(BETWEEN)
    return bytes.fromhex(value) if name == _FLOW and between and _HEX.fullmatch(value) else None


def joined(text: str | None, key: str) -> str:
    """The same needs, and one place of this key."""
    return AND.join([*([text] if text else []), f"{key}*1"])


def without(text: str | None, key: str) -> str | None:
    """The same needs but that of this key."""
    return written(need for need in needs_of(text) if need.key != key)


@lru_cache(maxsize=4096)
def keys_of(text: str | None) -> Sequence[str]:
    """The keys of these needs."""
    return tuple([need.key for need in needs_of(text)])
