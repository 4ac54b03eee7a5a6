"""End commands: with errors in one line, with mistakes on the command line, and when a person does not confirm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from toolbus.bus.values.results import ConfigurationError
from toolbus.operations.cli.output import ask, complain


class Failure(click.ClickException):
    """An error in one line, exit code 1."""

    def show(self, file: Any = None) -> None:
        """Print the error to standard error."""
        complain(f"toolbus: {self.message}")


class WrongUsage(Failure):
    """A mistake that stands in no option of the command line, exit code 2."""

    exit_code = click.UsageError.exit_code


def fail(message: str) -> NoReturn:
    """End the command with one line and exit code 1."""
    raise Failure(message)


def fail_if(fault: object, message: str) -> None:
    """End the command like ``fail`` if there is a fault, which is any true value."""
    if fault:
        fail(message)


def wrong_if(mistake: object, message: str) -> None:
    """Refuse what stands on the command line, with exit code 2, if there is a mistake in it, which is any true value."""
    if mistake:
        raise click.UsageError(message)


@contextlib.contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Say what to install when a package that ``what`` needs is missing.

    Raises:
        ConfigurationError: it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{what} needs {error.name}: pip install 'toolbus[{extra}]'") from None
    except ImportError as error:
        raise ConfigurationError(f"{what} needs another version of a package ({error}): pip install 'toolbus[{extra}]'") from None


def ask_first(question: str, *, yes: bool) -> None:
    """Ask on the terminal, apart from the output; end the command unless the answer is yes, here or in advance."""
    fail_if(not (yes or ask(question)), "not confirmed, so nothing was done; --yes answers in advance")
