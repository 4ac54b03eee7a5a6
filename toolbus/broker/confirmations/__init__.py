"""Ask for confirmations, which any process of the namespace can give."""
