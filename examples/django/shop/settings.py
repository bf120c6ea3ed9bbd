"""Settings for a small shop: web and worker share one database, SQLite or the server in DATABASE_URL."""

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

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


def server(url: str) -> dict:
    """The entry of DATABASES for postgresql://user:password@host:port/name or mysql://user:password@host:port/name."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    (socket,) = options.get("host") or options.get("unix_socket") or [None]
    return {
        "ENGINE": f"django.db.backends.{parts.scheme}",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": socket or parts.hostname or "",
        "PORT": parts.port or "",
    }


url = os.environ.get("DATABASE_URL", "")
if url.startswith("mysql:") and find_spec("MySQLdb") is None:  # Django wants mysqlclient, but PyMySQL does as well
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()

DATABASES = {"default": server(url) if url else SQLITE}
TASKS = {"default": {"BACKEND": "perdure.contrib.django.PerdureBackend"}}
