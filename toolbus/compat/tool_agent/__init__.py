"""tool_agent's program: the same four HTTP interfaces, started by one command.

``python -m toolbus.compat.tool_agent [DIR]`` records the tools of ``registry.json``, ``sources.json`` and ``groups.json`` in DIR, and
serves ``GET /health``, ``GET /tools``, ``POST /run_tool`` and ``POST /chat`` on port 8001, with the host of the tools, the service agent
and the coding agent behind them.
"""
