-- KEYS: requests, leases. ARGV: retry, group, consumer, ms, then the ids of claims that the consumer knows
-- Hands over its other claims that were delivered so many ms ago, or more. Their deliveries count.
touch_queue(KEYS[1])
local known = {}
for i = 5, #ARGV do known[ARGV[i]] = true end
local found = redis.pcall('XPENDING', KEYS[1], ARGV[2], 'IDLE', ARGV[4], '-', '+', 10000, ARGV[3])
if found.err then return 0 end
for _, pending in ipairs(found) do
  if not known[pending[1]] then give_away(KEYS[1], KEYS[2], ARGV[2], ARGV[3], pending[1], 0) end
end
return 1
