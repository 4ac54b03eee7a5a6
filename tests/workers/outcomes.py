"""Checks of failures for the tests of built-in services."""


def failed(result, type, code):
    """Return the message of a result after checking that it is this failure."""
    assert not result.success
    assert (result.error.type, result.error.code) == (type, code), result.error
    assert len(result.error.message) < 1_000
    return result.error.message
