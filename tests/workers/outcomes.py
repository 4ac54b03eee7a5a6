"""How the tests of ready-made services look at a failure."""


def failed(result, type, code):
    """The message of a result that must be this failure."""
    assert not result.success
    assert (result.error.type, result.error.code) == (type, code), result.error
    assert len(result.error.message) < 1_000
    return result.error.message
