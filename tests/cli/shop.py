"""A small shop. Copied into the working directory of tests as shop.py; imported as it is by those that look on."""

from __future__ import annotations

import os
from typing import Annotated

from perdure import JobContext, Perdure, Retry, Secret


def made(url: str | os.PathLike[str]) -> Perdure:
    app = Perdure(url, durability="normal")

    @app.job(queue="mail", retry=Retry(2, backoff="none"), timeout=30)
    def send(ctx: JobContext, to: str, token: Annotated[str, Secret] = "", copies: int = 1) -> str:
        ctx.log.info("sending to %s", to)
        if to == "nobody":
            raise ValueError("there is no such address:\nlook it up")
        return f"sent to {to}"

    @app.job(aliases=["scale"], version=2)
    async def resize(width: int, note: str | None = None) -> int:
        return width

    return app


app = made("shop.db")
