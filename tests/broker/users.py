"""Users of a server with the rights of roles alone."""

from __future__ import annotations

import redis

from toolbus import Settings
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.access import rights


class Users:
    """Makes users with roles on a server."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._made: list[str] = []

    def settings(self, *roles: str) -> Settings:
        """Return settings of a process whose user has these roles and no other right."""
        name = f"{self._namespace}-{'-'.join(roles)}"
        self._made.append(name)
        with redis.Redis.from_url(self._url) as client:
            rules = rights(roles, self._namespace).rules().split()
            client.execute_command("ACL", "SETUSER", name, "on", ">secret", *rules)
            # As workers have done wherever somebody watches: not every role may load them.
            for script in scripts.ALL:
                client.script_load(script.source)
        url = self._url.replace("redis://", f"redis://{name}:secret@")
        return Settings.load({}, url=url, namespace=self._namespace, lease=1.0)

    def remove(self) -> None:
        """Remove the users."""
        with redis.Redis.from_url(self._url) as client:
            client.execute_command("ACL", "DELUSER", *self._made, "nobody")
