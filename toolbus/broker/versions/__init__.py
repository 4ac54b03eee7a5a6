"""Keep releases with different versions of the protocol together, and change stored forms from one to the next."""
