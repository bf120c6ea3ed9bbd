"""Attributes computed on first use. Used wherever an object is shared between threads or inherited by a fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Lazy:
    """The base of every class with a `lazy` attribute: its objects have their `__dict__` from the start.

    CPython 3.11 makes it on first use, and if the garbage collector lets another thread use it in the middle of that,
    the object gets two, which own the same values: the process dies sooner or later (seen once in a test run).
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        new = super().__new__(cls)
        new.__dict__  # noqa: B018 - made now, while nobody else has the object
        return new


class lazy(Generic[T]):  # noqa: N801 - used as a decorator
    """As `functools.cached_property`, without the lock that it has before Python 3.12.

    A child forked while another thread held that lock would wait for it for ever. Here two threads may both compute the
    value; the first to finish stores it, and all see that one.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        if not issubclass(owner, Lazy):
            raise TypeError(f"{owner.__name__}.{name} is lazy, so {owner.__name__} must be a subclass of Lazy.")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return value
