#!lua flags=allow-oom
-- include held/write
-- Change a held document also while the server's memory is full: to keep its lease, to let go of it, to end or to delete it. KEYS, ARGV and
-- the answer: as below.
