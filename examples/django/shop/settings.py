"""Settings for a small shop: web and worker share one database, SQLite or the PostgreSQL in DATABASE_URL."""

import os
from importlib.util import find_spec
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it out")
DEBUG = os.environ.get("DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "perdure.contrib.django",
    "orders",
]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")  # Django 5.2: tasks come from a package
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("SHOP_FILE", BASE_DIR / "shop.sqlite3"),
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",  # or a request that reads before it writes fails: "database is locked"
        "timeout": 20,  # seconds to wait for another writer
    },
}


def postgresql(url: str) -> dict:
    """The entry of DATABASES for postgresql://user:password@host:port/name."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql"} | {ours: given.get(its) or "" for ours, its in names.items()}


DATABASES = {"default": postgresql(os.environ["DATABASE_URL"]) if os.environ.get("DATABASE_URL") else SQLITE}
TASKS = {"default": {"BACKEND": "perdure.contrib.django.PerdureBackend"}}
