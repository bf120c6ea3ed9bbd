"""A program for `test_processes`: makes changes to its process, one by one, and prints which of them are noticed."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable

from perdure.worker.executors.child import ProcessState

READING, _ = os.pipe()
CHANGES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "the working directory": lambda: os.chdir("/"),
    "the umask": lambda: os.umask(0o123),
    "a signal handler": lambda: signal.signal(signal.SIGUSR1, print),
    "the signal mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "a timer": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 3600),
    "standard input, output or error": lambda: os.dup2(READING, 0),
    "a limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    "the user, the group or the priority": lambda: os.nice(1 if os.nice(0) < 19 else -1),
    "the descriptors that are Perdure's": lambda: os.close(READING),
    "an environment variable": lambda: os.environ.pop("PATH"),
    "sys.path": lambda: sys.path.pop(0),
    "only added: a variable": lambda: os.environ.update(ADDED="1"),
    "only added: a path": lambda: sys.path.append("/added"),
}


def main() -> None:
    noticed: dict[str, list[str]] = {}
    for name, change in CHANGES.items():
        before = ProcessState(READING)
        change()
        noticed[name] = ProcessState(READING).changes_since(before)
    sys.stdout.write(json.dumps(noticed))


if __name__ == "__main__":
    main()
