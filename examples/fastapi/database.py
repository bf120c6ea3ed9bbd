"""Orders, in the database that the jobs are in too. One setting serves both: DATABASE_URL."""

import os

from sqlalchemy import String
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

url = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.db")
engine = create_async_engine(url)
session_factory = async_sessionmaker(engine)


class Base(DeclarativeBase): ...


class Order(Base):
    """`packed` is set by the job."""

    __tablename__ = "orders"

    number: Mapped[str] = mapped_column(String(50), primary_key=True)  # MariaDB wants a length
    article: Mapped[str] = mapped_column(String(50))
    packed: Mapped[bool] = mapped_column(default=False)
