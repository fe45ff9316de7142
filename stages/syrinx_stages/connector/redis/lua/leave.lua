-- KEYS: requests, capacity, leases. ARGV: retry, group, consumer. Deleting a consumer deletes its claims, so one with
-- claims stays.
redis.call('HDEL', KEYS[2], ARGV[2] .. ':' .. ARGV[3], 'due')
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], '-', '+', 1, ARGV[3])
if pending.err or #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[2], ARGV[3])
redis.call('ZREM', KEYS[3], ARGV[3])
return 1
