"""Ready-made tool services, each one module: ``toolbus worker workers.calculator``."""

# What `toolbus dev` serves: these need no network and no configuration.
EXAMPLES = ("workers.joke", "workers.calculator", "workers.text", "workers.json_query")
