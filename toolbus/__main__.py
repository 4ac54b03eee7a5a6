"""``toolbus``, and ``python -m toolbus``."""

import _thread
import sys
import time
from typing import Any

_INTERRUPTED = 130


def run() -> None:
    """Run the command line; Ctrl-C while its modules are still loaded ends it like Ctrl-C later."""
    sys.unraisablehook = _unraisable
    try:
        from toolbus.operations.cli import main  # noqa: PLC0415 - so that its imports can be interrupted

        main(prog_name="toolbus")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception as error:
        # A class that is being made turns what interrupts it into an error of its own.
        if _was_interrupted(error):
            sys.exit(_INTERRUPTED)
        raise


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupt() -> None:
    # What comes before the hook has returned is dropped, too.
    time.sleep(0.01)
    _thread.interrupt_main()


def _unraisable(unraisable: Any) -> None:
    """Interrupt again where Python would write a traceback and go on, as in callbacks of its import system."""
    if unraisable.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt, ())
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    run()
