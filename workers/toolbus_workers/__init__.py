"""Built-in tool services; ``toolbus see workers`` lists them, ``toolbus worker calculator`` serves one."""
