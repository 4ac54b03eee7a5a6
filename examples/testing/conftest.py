"""Give the tests the fixtures of toolbus."""

pytest_plugins = ["toolbus.testing.fixtures"]
