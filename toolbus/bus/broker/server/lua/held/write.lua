-- include held/_held
-- Change a held document. KEYS, ARGV and the answer: as below.
return change()
