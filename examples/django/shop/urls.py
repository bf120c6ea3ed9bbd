"""The shop's pages."""

from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [
    path("", views.overview),
    path("orders/", views.place_order),
    path("admin/", admin.site.urls),
]
