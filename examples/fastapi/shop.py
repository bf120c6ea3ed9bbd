"""A shop: `uvicorn shop:api`. An order and its job are written in one transaction."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

from database import Base, Order, engine, session_factory
from fastapi import Depends, FastAPI, HTTPException
from jobs import app, pack
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from perdure.contrib.fastapi import Jobs, lifespan

IN_STOCK = {"chair", "table"}


@asynccontextmanager
async def tables(_: FastAPI) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan(app, inner=tables))


async def new_session() -> AsyncGenerator[AsyncSession]:
    async with session_factory() as session:
        yield session


Session = Annotated[AsyncSession, Depends(new_session)]


@api.post("/orders/", status_code=201)
async def place_order(number: str, article: str, session: Session) -> dict[str, str]:
    """The order and its job: both are there, or neither is."""
    try:
        async with session.begin():
            session.add(Order(number=number, article=article))
            job = await pack.options(tx=session).aenqueue(number)
            if article not in IN_STOCK:
                raise HTTPException(409, f"there is no {article}")  # rolls back the order, and its job
    except IntegrityError:
        raise HTTPException(409, f"order {number} was placed before") from None
    return {"order": number, "job": str(job.id)}


@api.get("/orders/")
async def orders(session: Session) -> dict[str, bool]:
    """By number, whether it is packed."""
    return {order.number: order.packed for order in await session.scalars(select(Order).order_by(Order.number))}


@api.get("/jobs/{job_id}")
async def job(job_id: UUID, jobs: Jobs) -> dict[str, str]:
    """What became of an order."""
    if (found := await jobs.aio.get(job_id)) is None:
        raise HTTPException(404)
    return {"state": found.state}
