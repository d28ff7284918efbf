"""Adds all sub-commands to one app."""

from __future__ import annotations

import typer

from epochal.coordinator.console.actions import adopt, rename, resolve, retire
from epochal.coordinator.console.clean import clean
from epochal.coordinator.console.doctor import doctor
from epochal.coordinator.console.log import log
from epochal.coordinator.console.reconcile import reconcile
from epochal.coordinator.console.sql import sql
from epochal.coordinator.console.status import status
from epochal.coordinator.console.txns import txns
from epochal.coordinator.console.verify import verify

COMMANDS = (doctor, status, log, verify, reconcile, txns, clean, sql, adopt, retire, rename, resolve)
"""In the order in which ``--help`` lists them."""


def add_to(app: typer.Typer) -> None:
    for command in COMMANDS:
        app.command()(command)
