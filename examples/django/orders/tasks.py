"""What is done after an order has been placed, by the worker."""

from django.utils import timezone

from orders.models import Order

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def pack(order_id: int) -> str:
    """Pack an order. It may run twice if a worker is killed in the middle: the second time finds nothing to do."""
    order = Order.objects.get(pk=order_id)
    if order.packed_at is None:
        order.packed_at = timezone.now()
        order.save()
    return f"packed order {order.number}"
