"""Tests of workspaces: nothing that a task does reaches beyond its folder."""
