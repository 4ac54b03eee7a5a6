"""Programs of ``examples/`` and the commands of their pages."""
