"""Machines on one host: each is a network namespace with a cable to ours, which a test can cut, also in one direction.

Run as a module it is a worker on such a machine: `python -m tests.outages.network URL NAME CLOCK_OFFSET_S LEASE_S`. It
prints its node and each start of a job; a line on its input lets the jobs that run there end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from perdure import JobContext, Perdure
from perdure.clock import Micros, SystemClock
from tests.needs import Need, need, program
from tests.outages.proxy import Proxy
from tests.outages.server import Server

IP = program("ip")
ROOT = Path(__file__).parents[2]
NOBODY = "02:00:00:00:00:99"
_numbers = count(1)


def _ip(*arguments: str) -> None:
    assert IP is not None
    subprocess.run([IP, *arguments], check=True, capture_output=True, timeout=30)


class Machine:
    """One namespace. `server` is how our side is called there."""

    def __init__(self, number: int) -> None:
        tag = f"{os.getpid() % 10_000}-{number}"
        self.name = f"perdure-{tag}"
        self._cable = f"pdr{tag}"
        # of this process alone: one that was killed has left its machines behind
        net = f"10.{100 + os.getpid() // 250 % 100}.{os.getpid() % 250}"
        self.server, self._address = f"{net}.{4 * number + 1}", f"{net}.{4 * number + 2}"

    def set_up(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("addr", "add", f"{self.server}/30", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        _ip("-n", self.name, "addr", "add", f"{self._address}/30", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        _ip("netns", "del", self.name)  # and both ends of the cable with it

    def lose_what_it_sends(self) -> None:
        """It goes to a card that does not exist; what is sent to the machine arrives."""
        _ip("-n", self.name, "neigh", "replace", self.server, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def lose_what_is_sent_to_it(self) -> None:
        _ip("neigh", "replace", self._address, "lladdr", NOBODY, "dev", self._cable, "nud", "permanent")

    def pull_the_plug(self) -> None:
        self.lose_what_it_sends()
        self.lose_what_is_sent_to_it()

    def heal(self) -> None:
        subprocess.run([str(IP), "-n", self.name, "neigh", "del", self.server, "dev", "eth0"], check=False)
        subprocess.run([str(IP), "neigh", "del", self._address, "dev", self._cable], check=False)


@contextmanager
def machine() -> Iterator[Machine]:
    made = Machine(next(_numbers))
    need(Need.NETWORKS)
    made.set_up()
    try:
        yield made
    finally:
        made.remove()


class Node:
    """A worker on a machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        self.process = process
        self.id = self.read("ready")

    def read(self, word: str) -> str:
        """What it says with the next line, which begins with this word."""
        said, _, rest = self._output.readline().strip().partition(" ")
        assert said == word, (said, rest)
        return rest

    def let_jobs_end(self) -> None:
        self._input.write("go\n")
        self._input.flush()


@contextmanager
def node_on(machine: Machine, server: Server, name: str, *, lease_s: float, offset_s: float = 0) -> Iterator[Node]:
    """A worker whose way to the server is the machine's cable."""
    with closing(Proxy(server.connect, machine.server)) as proxy:
        url = server.url_at(proxy.port, machine.server)
        worker = [sys.executable, "-m", "tests.outages.network", url, name, str(offset_s), str(lease_s)]
        process = subprocess.Popen(
            [str(IP), "netns", "exec", machine.name, *worker],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield Node(process)
        finally:
            process.kill()
            process.wait(30)
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


class ShiftedClock(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, offset_s: float) -> None:
        self._offset_us = round(offset_s * 1_000_000)

    def now(self) -> Micros:
        return Micros(super().now() + self._offset_us)


def main(url: str, name: str, offset_s: str, lease_s: str) -> None:
    app = Perdure(url, clock=ShiftedClock(float(offset_s)), lease_s=float(lease_s))
    go = threading.Event()

    @app.job(name="hold")
    def hold(ctx: JobContext) -> str:
        print("started", ctx.attempt, flush=True)  # noqa: T201 - how the test learns it
        while not go.wait(0.02):
            ctx.checkpoint()
        return name

    with app.worker().running() as worker:
        health = worker.health()
        assert health.node_id is not None
        print("ready", health.node_id, flush=True)  # noqa: T201
        for _ in sys.stdin:
            go.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
