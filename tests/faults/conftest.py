"""A scene for every test, checked at its end, and an ear for what the worker says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Listener, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    logger = logging.getLogger("perdure.worker")
    logger.addHandler(listener)
    yield listener
    logger.removeHandler(listener)
