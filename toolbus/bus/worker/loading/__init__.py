"""Find services by the names on a command line."""
