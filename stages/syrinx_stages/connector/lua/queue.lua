-- KEYS: requests, capacity. ARGV: retry, group
-- Returns the queue's length, the age of the oldest request and the expected wait of the next one, both in ms
local length, oldest = waiting(KEYS[1], ARGV[2], math.max(redis.call('XLEN', KEYS[1]), 1))
return {length, oldest, expected_wait(KEYS[2], length)}
