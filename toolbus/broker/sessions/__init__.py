"""Keep the calls of one session at one worker."""
