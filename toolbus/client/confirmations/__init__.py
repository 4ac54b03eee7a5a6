"""Confirmations at the caller: the requests that wait for a person, and the permissions that come of them."""
