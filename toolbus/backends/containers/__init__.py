"""Containers by the command line of docker or podman."""
