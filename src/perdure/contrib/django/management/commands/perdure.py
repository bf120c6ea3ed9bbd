"""`manage.py perdure …`: the program `perdure`, about the jobs of this project. `perdure_worker` builds on it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from perdure.cli.discovery import APP_VARIABLE
from perdure.cli.main import main
from perdure.config import URL_VARIABLE


class Command(BaseCommand):
    """Arguments that Django does not know, `--help` too, are handed on as they are."""

    help = "Look at jobs and steer them: all that the program perdure can do."
    requires_system_checks: ClassVar[Any] = []  # to look at jobs, nothing needs to be right
    command: ClassVar[tuple[str, ...]] = ()
    """The first words for the program."""

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, allow_abbrev=False, add_help=False, **options)

        def parse_args(args: Sequence[str] | None = None, namespace: Namespace | None = None) -> Namespace:
            known, rest = parser.parse_known_args(args, namespace)
            known.arguments = rest
            return known

        parser.parse_args = parse_args
        return parser

    def handle(self, *_: Any, arguments: Sequence[str], **options: Any) -> None:
        """Ends the process with the program's status."""
        os.environ.pop(URL_VARIABLE, None)  # the settings say where the jobs are
        os.environ[APP_VARIABLE] = "perdure.contrib.django:app"
        main([*self.command, *arguments])
