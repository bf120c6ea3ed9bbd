"""The row about Django on one SQLite file: how many requests fail because the worker writes at the same time, with the
transactions that docs/django.md asks for, and with Django's default, which `perdure.E004` refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measure import middle_half, scratch_folder
from bench.report import Figure, at_most
from tests.contrib_django.project import Project, Web
from tests.customers import free_port

REQUESTS = 400
CLIENTS = 8
ROUNDS = 3
IMMEDIATE = '"transaction_mode": "IMMEDIATE",'
SILENT = 'SILENCED_SYSTEM_CHECKS = ["perdure.E004"]\n'


def requests(rounds: int) -> list[Figure]:
    """Orders over HTTP at the shop in examples/django, as web server and worker, each a process; those not answered
    with 201 have failed."""
    few = min(rounds, ROUNDS)
    asked, default = ([_failed(immediate=immediate) for _ in range(few)] for immediate in (True, False))
    return [
        Figure(
            "locked",
            f"failed requests of {REQUESTS} beside a worker, Django on SQLite",
            max(asked),
            "requests",
            middle_half([float(count) for count in asked]),
            f"IMMEDIATE {', '.join(map(str, asked))}",
            f"Django's default {', '.join(map(str, default))}",
            at_most(0, "requests"),
            rounds={"IMMEDIATE": [*map(float, asked)], "default": [*map(float, default)]},
        )
    ]


def _failed(*, immediate: bool) -> int:
    with scratch_folder() as folder:
        shop = _shop(folder, immediate=immediate)
        try:
            web = Web(shop, free_port())
            shop.start("perdure_worker", log="worker.log")
            shop.wait_until_said("worker.log", "worker")
            while web.order("first", "chair") is None:
                """The server is just starting."""
            with ThreadPoolExecutor(CLIENTS) as clients:
                replies = list(clients.map(lambda number: web.order(str(number), "chair"), range(REQUESTS)))
        finally:
            shop.stop()
    return sum(status != 201 for status in replies)


def _shop(folder: Path, *, immediate: bool) -> Project:
    shop = Project(folder)
    if not immediate:
        shop.edit("shop/settings.py", IMMEDIATE, "")
        shop.edit("shop/settings.py", "STATIC_URL", f"{SILENT}STATIC_URL")
    shop.manage("migrate")
    return shop
