"""Ready-made tool services; ``toolbus workers`` lists them, ``toolbus worker calculator`` serves one."""
