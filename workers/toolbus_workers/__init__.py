"""Built-in tool services; ``toolbus workers`` lists them, ``toolbus worker calculator`` serves one."""
