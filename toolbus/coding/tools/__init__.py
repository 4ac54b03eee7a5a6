"""The tools of a coding agent's task: files, uv projects and containers."""
