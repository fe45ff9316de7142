-- KEYS: requests. ARGV: retry, group, claim id
finish(KEYS[1], ARGV[2], ARGV[3])
return 1
