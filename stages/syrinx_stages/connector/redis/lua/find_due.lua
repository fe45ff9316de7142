-- KEYS: requests, leases. ARGV: retry, group, consumer, lease in ms, '' for claims that were handed over only
-- Renews the consumer's lease. Returns 1 if there are claims to take over.
-- Forgets consumers without claims that are long gone.
renew(KEYS[1], KEYS[2], ARGV[3])
for _, owner in ipairs(due(KEYS[2], ARGV[4], ARGV[1])) do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], '-', '+', 1, owner)
  if pending.err then return 0 end
  if #pending > 0 then return 1 end
  if clock() - redis.call('ZSCORE', KEYS[2], owner) > 1000 * GONE_SECONDS then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[2], owner)
    redis.call('ZREM', KEYS[2], owner)
  end
end
return 0
