-- KEYS: requests. ARGV: retry, group, consumer, then each claim's id
-- Sets the idle time to a day, so that the lease has expired, and does not count the delivery.
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1, ARGV[3])
  local _, _, idle, deliveries = unpack(pending[1] or {})
  if idle and idle < 43200000 then
    redis.call('XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, id, 'IDLE', 86400000, 'RETRYCOUNT', deliveries - 1, 'JUSTID')
  end
end
return 1
