"""The state of a namespace, sampled for people: what ``toolbus see top`` and the gateway's page show."""
