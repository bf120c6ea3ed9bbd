#!/usr/bin/env python
"""The project's commands: `python manage.py migrate`, `runserver`, `perdure_worker`, `perdure status` …"""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
