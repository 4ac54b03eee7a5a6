"""JSON Schemas of tools' arguments: derived from functions, corrected, converted for models, and enforced."""

from __future__ import annotations

from toolbus.schema.derive import Derived, derive, describable
from toolbus.schema.mend import mended, mended_document
from toolbus.schema.portable import check_possible, plain_object
from toolbus.schema.strict import strict
from toolbus.schema.validate import Checker, Validator, check_for, required_only

__all__ = [
    "Checker",
    "Derived",
    "Validator",
    "check_for",
    "check_possible",
    "derive",
    "describable",
    "mended",
    "mended_document",
    "plain_object",
    "required_only",
    "strict",
]
