"""What a package index shows: the README with links that work there, and the project's addresses. Called by hatchling.

The addresses are made from one: `home` in pyproject.toml, `[tool.hatch.metadata.hooks.custom]`, the address of the
repository on its host. Without it there are none, and what the README links to in the repository is only named.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]\n]+(?:\n[^\]\n]+)?)\]\(((?!\w+:|#)[^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class CustomMetadataHook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        home = str(self.config.get("home") or "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        base = f"{home}/blob/v{metadata['version']}" if home else None
        metadata["readme"] = {"content-type": "text/markdown", "text": for_an_index(text, base)}
        metadata["urls"] = addresses(home) if home else {}


def addresses(home: str) -> dict[str, str]:
    return {
        "Repository": home,
        "Documentation": f"{home}/blob/main/README.md",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def for_an_index(readme: str, base: str | None) -> str:
    """The README with links into the repository below `base`; without a base, with none."""

    def shown(link: re.Match[str]) -> str:
        return f"[{link[1]}]({base}/{link[2]})" if base else link[1]

    parts = _FENCED.split(readme)
    return "".join(part if part.startswith("```") else _LINK.sub(shown, part) for part in parts)
