"""Runs the command line: in a process of its own, as users do, or inside the test's, which is ten times as quick."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from perdure.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"


class Ran(NamedTuple):
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Perdure(Protocol):
    """`perdure …` in the folder `cwd`, with `typed` on its standard input and only these PERDURE_ variables."""

    def __call__(self, *arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran: ...


def process(*arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "perdure", *arguments],  # -P: like the console script, which adds no folder
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env=clean | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200"} | environment,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class InProcess:
    """The same inside the test's process; every call starts with nothing imported from the working directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran:
        before, loggers = set(sys.modules), list(logging.getLogger("perdure.doctor").handlers)
        with self._monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("PERDURE_")]:
                patch.delenv(name)
            for name, value in {"COLUMNS": "200", **environment}.items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(sys, "stdin", io.StringIO(typed))
            with pytest.raises(SystemExit) as ended:
                main(arguments)
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) == str(cwd / f"{name}.py"):
                del sys.modules[name]
        assert logging.getLogger("perdure.doctor").handlers == loggers
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, *self._capsys.readouterr())


def refusal(ran: Ran) -> str:
    """The one line of a command that could not do what was asked."""
    assert ran.status == 2, ran
    assert ran.out == ""
    [line] = ran.err.splitlines()
    assert line.startswith("perdure: ")
    return line
