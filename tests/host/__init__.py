"""Tests of hosts: pools of instances, and the services that ask them."""
