#!lua flags=allow-oom
-- include publish/_cancel
-- Cancel a call: remove it if no worker has it, else tell the workers.
-- KEYS: 1 request stream, 2 cancelled calls
-- ARGV: 1 entry, 2 call id, 3 milliseconds until its deadline, 4 wake channel, 5 type of the error that the caller has ("cancelled" if left out)
-- Returns "removed" (it never ran), "signalled" or "gone" (already finished).
return cancel(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
