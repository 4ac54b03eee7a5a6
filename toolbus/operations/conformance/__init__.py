"""Try whether workers and agents in other languages keep the protocol; ``toolbus conformance`` runs it."""
