"""The state of a namespace, sampled for people: what ``toolbus top`` and the gateway's page show."""
