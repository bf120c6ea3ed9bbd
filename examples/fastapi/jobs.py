"""What is done after an order has been placed, by the worker: `perdure worker jobs:app`."""

from database import Order, session_factory, url

from perdure import Perdure

app = Perdure(url, auto_migrate=True)


@app.job
async def pack(number: str) -> str:
    """Pack an order. It may run twice if a worker is killed in the middle: the second time finds nothing to do."""
    async with session_factory() as session, session.begin():
        order = await session.get_one(Order, number)
        order.packed = True
    return f"packed order {number}"
