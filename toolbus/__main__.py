"""``python -m toolbus``."""

from toolbus.cli import main

main(prog_name="toolbus")
