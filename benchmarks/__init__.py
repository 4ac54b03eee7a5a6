"""Measurements of toolbus beside its peers; ``python -m benchmarks --help`` explains them."""
