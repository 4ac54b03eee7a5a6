"""How the tests of ready-made services look at a failure."""


def failed(result, type, code):
    """Return the message of a result after checking that it is this failure."""
    assert not result.success
    assert (result.error.type, result.error.code) == (type, code), result.error
    assert len(result.error.message) < 1_000
    return result.error.message
