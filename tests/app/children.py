"""Forked children of the test process."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def in_child(act: Callable[[], str], meanwhile: Callable[[], object] = lambda: None) -> str:
    """What `act` answers in a forked child, or its traceback; `meanwhile` runs here after the fork."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is just what is tested
        child = os.fork()
    if child == 0:
        try:
            answer = act()
        except BaseException:  # noqa: BLE001 - a child of the test must not go on as a second pytest
            answer = traceback.format_exc()
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    meanwhile()
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer
