"""Set requests aside that can't be run, and list, redrive and drop them."""
