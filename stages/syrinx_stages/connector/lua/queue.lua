-- KEYS: requests. ARGV: retry, group. Returns the queue's length and the age of the oldest request in ms
local length, oldest = waiting(KEYS[1], ARGV[2], math.max(redis.call('XLEN', KEYS[1]), 1))
return {length, oldest}
