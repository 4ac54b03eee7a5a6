"""Ask people, whichever process they sit at, and bring their answers."""
