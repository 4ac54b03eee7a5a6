"""JSON Schemas of tools' arguments: derived from functions, corrected, converted for models, and enforced.

Each name is imported when it is first used, so that a caller does not load what derives schemas, nor the compiler of schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolbus.bus.support.lazy import lazily

if TYPE_CHECKING:
    from toolbus.bus.schema.derivation import Derived, derive, describable
    from toolbus.bus.schema.dialects import check_possible, plain_object, strict
    from toolbus.bus.schema.mend import mended, mended_document
    from toolbus.bus.schema.validate import Preparer, RequiredOnly, Validator, preparer_for

__all__ = [
    "Derived",
    "Preparer",
    "RequiredOnly",
    "Validator",
    "check_possible",
    "derive",
    "describable",
    "mended",
    "mended_document",
    "plain_object",
    "preparer_for",
    "strict",
]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "toolbus.bus.schema.derivation": ("Derived", "derive", "describable"),
        "toolbus.bus.schema.mend": ("mended", "mended_document"),
        "toolbus.bus.schema.dialects": ("check_possible", "plain_object", "strict"),
        "toolbus.bus.schema.validate": ("Preparer", "RequiredOnly", "Validator", "preparer_for"),
    },
)
