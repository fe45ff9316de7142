-- KEYS: requests, then for each claim: the output stream and the owners of its request
-- ARGV: retry, group, consumer, then each claim's id
-- Returns for each claim its new epoch, or 0 if there is none, and the number of deliveries since the output last grew.
-- A claim that another consumer has taken over gets no epoch. One that no client waits for is finished.
local group, accepted = ARGV[2], {}
for n = 4, #ARGV do
  local stream, owners, id = KEYS[2 * n - 6], KEYS[2 * n - 5], ARGV[n]
  local epoch, deliveries = 0, 0
  local last = last_id(stream)
  local pending = redis.pcall('XPENDING', KEYS[1], group, id, id, 1, ARGV[3])
  if not last then
    finish(KEYS[1], group, id)
  elseif not pending.err and #pending > 0 then
    epoch = redis.call('HINCRBY', owners, group, 1)
    local ttl = redis.call('TTL', stream)
    if ttl > 0 then redis.call('EXPIRE', owners, ttl) end
    if redis.call('HGET', owners, group .. ':last') ~= last then
      redis.call('HSET', owners, group .. ':last', last, group .. ':before', pending[1][4] - 1)
    end
    deliveries = pending[1][4] - redis.call('HGET', owners, group .. ':before')
  end
  accepted[#accepted + 1] = {epoch, deliveries}
end
return accepted
