"""Orders, and what is left in the store."""

from django.db import models


class Stock(models.Model):
    """How many pieces of an article there are."""

    article = models.CharField(max_length=50, unique=True)
    pieces = models.IntegerField()


class Order(models.Model):
    """What a customer has ordered. `number` is the customer's own."""

    number = models.CharField(max_length=50, unique=True)
    article = models.CharField(max_length=50)
    packed_at = models.DateTimeField(null=True)
