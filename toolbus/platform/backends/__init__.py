"""Run recorded tools: as local programs, in containers, and behind HTTP APIs."""
