"""A tool in a module that starts a thread when it is imported, which a fork would lose."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from toolbus import tool

pool = ThreadPoolExecutor(1)
pool.submit(threading.get_ident).result()


@tool(effect="read", isolation="process")
def iso_uses_thread() -> int:
    """Use the module's thread."""
    return pool.submit(os.getpid).result(5)
