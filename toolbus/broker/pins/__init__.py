"""Keep which form of each tool an operator has approved."""
