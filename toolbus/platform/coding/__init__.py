"""The coding agent: takes tasks, writes tools, tries them, and records them for approval."""
