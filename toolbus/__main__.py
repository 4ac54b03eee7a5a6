"""``toolbus``, and ``python -m toolbus``."""

import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command line; Ctrl-C while its modules are still loaded ends it like Ctrl-C later."""
    try:
        from toolbus.operations.cli import main  # noqa: PLC0415 - so that its imports can be interrupted

        main(prog_name="toolbus")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
