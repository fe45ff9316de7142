-- A group's leases: a sorted set of its consumers by the time in ms of the last renewal. A consumer's lease is that of
-- all its claims, so neither a renewal nor a search for expired ones depends on their number.
-- Claims that were handed over belong to the consumer '-', which is always due.
local function renew(requests, leases, consumer)
  -- Redis refuses no write after the first one of a script, even if its memory is full.
  touch_queue(requests)
  redis.call('ZADD', leases, clock(), consumer)
  redis.call('EXPIRE', leases, QUEUE_TTL_SECONDS)
end

-- Moves a claim to whoever has room. Returns whether `consumer` had it.
local function give_away(requests, leases, group, consumer, id, undone)
  local pending = redis.pcall('XPENDING', requests, group, id, id, 1, consumer)
  if pending.err or #pending == 0 then return false end
  redis.call('XCLAIM', requests, group, '-', 0, id, 'RETRYCOUNT', pending[1][4] - undone, 'JUSTID')
  redis.call('ZADD', leases, 0, '-')
  redis.call('EXPIRE', leases, QUEUE_TTL_SECONDS)
  return true
end

-- Returns the time of the last renewal, in ms, with which a lease has expired. If `lease` is '', or a connection was lost
-- meanwhile, only that of claims that were handed over has: see `RedisConsumer._lease`.
local function expiry(lease, retry)
  return (lease == '' or retry == '1') and 0 or clock() - lease
end

-- Returns the consumers whose leases have expired, those with the oldest first.
local function due(leases, lease, retry)
  return redis.call('ZRANGEBYSCORE', leases, '-inf', expiry(lease, retry), 'LIMIT', 0, 100)
end

-- Returns whether a consumer has a lease that has not expired.
local function holds_lease(leases, lease, retry, consumer)
  local renewed = redis.call('ZSCORE', leases, consumer)
  return renewed and tonumber(renewed) > expiry(lease, retry)
end
