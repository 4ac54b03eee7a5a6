"""The canary, for every test of this folder."""

from __future__ import annotations

from tests.faults.canary import canary

__all__ = ["canary"]
