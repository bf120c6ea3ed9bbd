"""A store of somebody else's: it keeps the contract, and an app, a worker, the doctor and the CLI use it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from uuid import uuid4

import pytest

from perdure import ConfigError, Perdure
from perdure.cli.main import main
from perdure.ops.doctor import examine
from perdure.ops.repairs import REPAIRS, repair
from perdure.store.open import STORES, open_store
from perdure.testing.contract import Case, NotSupported, Rig, cases, run_case
from tests.conftest import SIZE
from tests.contract.memory import open_memory


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4()}"


@pytest.fixture
def rig(url: str) -> Iterator[Rig]:
    rig = Rig(url, open_memory)
    yield rig
    rig.close()


CASES = [case for case in cases() if case.group != "model" and "processes claim" not in str(case)]
"""All but the longest, random one, and the one that starts processes, of which each would have a memory of its own."""
ONE_OF_EACH = list({case.test: case for case in reversed(CASES)}.values())[::-1]
"""The operations and statements are those of SQLite, which runs with all values: see test_sqlite."""


@pytest.mark.parametrize("case", CASES if SIZE == "full" else ONE_OF_EACH, ids=str)
def test_a_foreign_store_keeps_the_contract(case: Case, rig: Rig) -> None:
    try:
        run_case(case, rig)
    except (NotSupported, NotImplementedError) as reason:
        pytest.skip(str(reason))


def worked_through(app: Perdure) -> None:
    sent: list[str] = []

    @app.job
    def send(to: str) -> str:
        sent.append(to)
        return to.upper()

    jobs = [send.enqueue("ada"), send.options(business_key="b").enqueue("bob")]
    with app.transaction() as tx:
        jobs.append(send.options(tx=tx).enqueue("eve"))
    app.worker().run(until_idle=True)

    assert sent == ["ada", "bob", "eve"]
    assert [found.result for job in jobs if (found := app.get(job)) is not None] == ["ADA", "BOB", "EVE"]
    assert examine(app.store) == []
    assert [repair(app.store, known.name) for known in REPAIRS] == [0] * len(REPAIRS)


def test_an_app_uses_a_store_that_it_is_given(url: str) -> None:
    worked_through(Perdure(url, store=open_memory(url)))


def test_an_app_uses_what_opens_the_store_of_its_url(url: str) -> None:
    app = Perdure(url, store=open_memory)
    worked_through(app)

    assert app.store is open_memory(url)


def test_another_url_is_another_store(url: str) -> None:
    app = Perdure(url, store=open_memory)
    app.url = f"{url}-2"
    assert app.store is open_memory(f"{url}-2")

    given = Perdure(url, store=open_memory(url))
    given.url = f"nowhere://{url}"
    with pytest.raises(ConfigError, match="url_unsupported"):
        given.store.queues()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if packages were installed that name these stores."""
    named = {"memory": "tests.contract.memory:open_memory", "broken": "tests.contract.memory:nothing"}
    entries = metadata.EntryPoints([metadata.EntryPoint(name, value, STORES) for name, value in named.items()])
    monkeypatch.setattr(metadata, "entry_points", entries.select)


@pytest.mark.usefixtures("installed")
def test_a_scheme_that_a_package_names_is_opened_by_it(url: str) -> None:
    worked_through(Perdure(url))

    assert open_store(url) is open_memory(url)


@pytest.mark.usefixtures("installed")
def test_the_command_line_uses_it_too(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    worked_through(Perdure(url))

    for command, printed in {
        ("doctor",): "Healthy",
        ("db", "check"): "revision",
        ("db", "upgrade"): "newest schema",
        ("jobs",): "send",
    }.items():
        with pytest.raises(SystemExit) as ended:
            main([*command, "--url", url])
        assert ended.value.code == 0
        assert printed in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_a_store_that_cannot_be_imported_is_named_with_its_scheme() -> None:
    with pytest.raises(ConfigError, match=r"broken:// is opened by tests.contract.memory:nothing.*store_unknown"):
        Perdure("broken://x").store.queues()


def test_a_scheme_that_nobody_opens_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--url", "nobody://here"])

    assert ended.value.code == 2
    assert "nobody:// is not a database Perdure knows" in " ".join(capsys.readouterr().err.split())
