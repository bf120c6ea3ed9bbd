"""What a store is told when it is opened. Built by `config`, used by `open`."""

from __future__ import annotations

from typing import NamedTuple


class StoreSettings(NamedTuple):
    """What a store needs to know besides where it is."""

    durability: str = "full"
    busy_timeout_s: float = 5.0
    auto_migrate: bool | None = None
    allow_network_filesystem: bool = False
