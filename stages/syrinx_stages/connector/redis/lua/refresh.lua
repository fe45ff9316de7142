-- KEYS: requests, leases, writers, then for each claim to check: the output stream and the owners of its request
-- ARGV: retry, group, consumer, kind of the output streams, then for each claim: id, token
-- Renews the consumer's lease. Returns the ids of claims that it has lost. The owner of the newest token keeps its
-- claim, also if a fail-over has lost it from the pending list, or a takeover has moved it and not been accepted yet.
local group, consumer = ARGV[2], ARGV[3]
local function is_finished(stream, id)
  return string.match(end_of(stream), '%-9$') or #redis.call('XRANGE', KEYS[1], id, id) == 0
end

renew(KEYS[1], KEYS[2], consumer)
local lost = {}
for i = 4, #KEYS, 2 do
  local stream, owners, id, token = KEYS[i], KEYS[i + 1], ARGV[i + 1], ARGV[i + 2]
  local pending = redis.pcall('XPENDING', KEYS[1], group, id, id, 1, consumer)
  if redis.call('EXISTS', stream) == 0 then
    drop(KEYS[1], id)
    lost[#lost + 1] = id
  elseif pending.err or not is_newest(KEYS[3], owners, group, token, ARGV[4], stream) then
    lost[#lost + 1] = id
  elseif #pending == 0 and is_finished(stream, id) then
    lost[#lost + 1] = id
  elseif #pending == 0 then
    redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'FORCE', 'JUSTID')
  end
end
return lost
