"""Statistics of workers, which they answer when they are asked."""
