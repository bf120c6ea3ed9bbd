"""No secret is printed: neither by the worker, whoever logs it, nor by any command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import Perdure, process

HIDDEN = "•••"
SHOP = """
import logging
from base64 import b64encode

from perdure import JobContext, Perdure
from pydantic import SecretStr

app = Perdure("shop.db")


def say(ctx, password):
    word = password.get_secret_value()
    logging.getLogger("shop.mail").warning("with %s and %s", word, b64encode(b"me:" + word.encode()))
    ctx.log.info("with %s", word)
    try:
        raise ExceptionGroup("several", [ValueError(word)])
    except ExceptionGroup:
        logging.getLogger("shop.mail").exception("refused")
    raise type("Bad" + word.replace("\\n", ""), (Exception,), {})(word)


@app.job(retry=1)
def plain(ctx: JobContext, password: SecretStr) -> None:
    say(ctx, password)


@app.job(retry=1, isolation="process")
def apart(ctx: JobContext, password: SecretStr) -> None:
    say(ctx, password)
"""
WORD = "hunter2-first\nhunter2-second"


@pytest.mark.parametrize("form", ["human", "json"])
def test_neither_the_worker_nor_any_command_prints_a_secret(perdure: Perdure, tmp_path: Path, form: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    for kind in ("plain", "apart"):
        assert "hunter2" not in "".join(
            map(str, process("enqueue", kind, f"password={WORD}", "--app", "shop:app", cwd=tmp_path))
        )
    worker = process("worker", "shop:app", "--until-idle", "--log-format", form, "--log-level", "debug", cwd=tmp_path)
    assert worker.status == 0
    assert worker.err.count(f"with {HIDDEN}") == 4  # the lines of the child process too
    assert "hunter2" not in worker.out + worker.err
    jobs = perdure("jobs", "--json", "--url", "shop.db", cwd=tmp_path).json()
    commands = [[command, job["id"]] for job in jobs for command in ("job", "runs", "logs", "explain")]
    for command in (*commands, ["jobs"], ["status"], ["runs"], ["doctor"]):
        for options in ([], ["--json"]):
            shown = perdure(*command, *options, "--url", "shop.db", cwd=tmp_path)
            assert shown.status == 0
            assert "hunter2" not in shown.out + shown.err


@pytest.mark.parametrize("given_", [[WORD], ["--payload", json.dumps(WORD)], ["--payload", json.dumps([WORD])]])
def test_arguments_typed_wrongly_are_not_printed(tmp_path: Path, given_: list[str]) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    refused = process("enqueue", "plain", *given_, "--app", "shop:app", cwd=tmp_path)
    assert refused.status == 2
    assert "hunter2" not in refused.out + refused.err
