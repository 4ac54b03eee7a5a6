"""Exceptions that services raise, at the path that TrustGraph uses."""


class TooManyRequests(Exception):
    """Raised by ``invoke`` when an upstream service limits it; the call is tried again later."""
