-- KEYS: requests, then the owners of each accepted claim
-- ARGV: retry, group, consumer, then each claim's id, the accepted ones first
-- Sets the idle time to a day, so that the lease has expired, and does not count the delivery.
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1, ARGV[3])
  local _, _, idle = unpack(pending[1] or {})
  if idle and idle < 43200000 then
    redis.call('XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, id, 'IDLE', 86400000, 'JUSTID')
    local owners = KEYS[i - 2]
    if owners and redis.call('EXISTS', owners) == 1 then redis.call('HINCRBY', owners, ARGV[2] .. ':deliveries', -1) end
  end
end
return 1
