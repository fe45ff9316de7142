-- KEYS: leases. ARGV: retry, milliseconds. Returns how many consumers have renewed their leases in that time
return redis.call('ZCOUNT', KEYS[1], clock() - ARGV[2], '+inf')
