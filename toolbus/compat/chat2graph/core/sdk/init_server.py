"""``init_server``, which has nothing to do here."""


def init_server() -> None:
    """Do nothing: there is no database to make, and services are made when they are first used."""
