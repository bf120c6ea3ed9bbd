"""Placing an order, and seeing what became of it."""

from django.db import IntegrityError, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.html import format_html_join
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.models import Order, Stock
from orders.tasks import pack


class OutOfStockError(Exception):
    """The order cannot be placed."""


@csrf_exempt  # so that curl can try it
@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """The order and its job are written in one transaction: both are there, or neither is."""
    number, article = request.POST["number"], request.POST["article"]
    try:
        with transaction.atomic():
            in_stock = Stock.objects.filter(article=article).exists()
            order = Order.objects.create(number=number, article=article)
            result = pack.enqueue(order.pk)
            if not in_stock:
                raise OutOfStockError(article)  # rolls back the order, and its job
            Stock.objects.filter(article=article).update(pieces=F("pieces") - 1)
    except OutOfStockError:
        return JsonResponse({"error": f"there is no {article}"}, status=409)
    except IntegrityError:
        return JsonResponse({"error": f"order {number} was placed before"}, status=409)
    return JsonResponse({"order": order.pk, "job": result.id}, status=201)


def overview(request: HttpRequest) -> HttpResponse:
    """All orders."""
    rows = ((order.number, order.article, order.packed_at or "waits") for order in Order.objects.order_by("pk"))
    lines = format_html_join("", "<tr><td>{}<td>{}<td>{}", rows)
    return HttpResponse(f"<!doctype html><title>Orders</title><table><tr><th>order<th>article<th>packed{lines}</table>")
