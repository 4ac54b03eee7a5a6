"""Real worker processes, scaled by the formulas of KEDA and of Kubernetes' autoscaler, under load."""
