"""Write frames to reply streams, finish requests with their last ones, and read replies."""
