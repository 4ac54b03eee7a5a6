"""Try whether workers and agents in other languages keep the protocol; ``toolbus protocol conformance`` runs it."""
