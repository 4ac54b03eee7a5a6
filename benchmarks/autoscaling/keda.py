"""KEDA, as its documentation describes it: whether there is any replica at all.

- Polling, activation and cooldown: https://keda.sh/docs/latest/reference/scaledobject-spec/ and
  https://keda.sh/docs/latest/concepts/scaling-deployments/
- The metric of a stream: https://keda.sh/docs/latest/scalers/redis-streams/

From one replica on HPA decides, which asks KEDA for the metric at each of its own periods.
"""

from __future__ import annotations

from benchmarks.autoscaling.policy import Policy


class Activation:
    """Scales between zero and the first replica, at each look at the stream.

    Args:
        policy: the figures.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._active_at = float("-inf")

    def look(self, now: float, current: int, length: int) -> int:
        """Return how many replicas there should be: as many as there are, unless there are none and a request, or too many for too long."""
        policy = self._policy
        if length > 0:
            self._active_at = now
            return current or max(1, policy.min_replicas)
        if current < policy.min_replicas:
            return policy.min_replicas
        if not policy.min_replicas and now - self._active_at > policy.cooldown_period:
            return 0
        return current
