"""Tasks for the tests: of another module than `tasks`, as projects have them too."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

from perdure import Skip, Snooze, current
from perdure.contrib.django.backend import tasks

task: Any = tasks.task
seen: list[Any] = []


@task
def double(n: int) -> int:
    return 2 * n


@task
async def count_orders() -> int:
    from orders.models import Order

    return await Order.objects.acount()


@task
def count_orders_now() -> int:
    from orders.models import Order

    return Order.objects.count()


@task(takes_context=True)
def flaky(context: Any) -> int:
    """Fails the first time."""
    seen.append((context.attempt, [error.exception_class_path for error in context.task_result.errors]))
    if context.attempt == 1:
        raise LookupError("not yet")
    return context.attempt


@task
def unlucky() -> None:
    raise ValueError("never")


@task
def many_ends(how: str) -> Any:
    match how:
        case "skip":
            raise Skip("nothing to do")
        case "snooze":
            raise Snooze(timedelta(hours=1))
        case "unstorable":
            return object()
        case "context":
            return str(current().job_id)  # type: ignore[union-attr]
        case _:
            return how


def given_a_rate(function: Any) -> Any:
    @wraps(function)
    def call(n: int) -> int:
        result: int = function(2, n)
        return result

    return call


@task
@given_a_rate
def with_a_rate(rate: int, n: int) -> int:
    return rate * n


def picky(n: int) -> None:
    raise ValueError(n)
