"""Tests of records. A folder `platform` here would hide the module of the standard library from scripts in `tests/`."""
