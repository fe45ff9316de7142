-- KEYS: requests, then for each claim: the output stream and the owners of its request
-- ARGV: retry, group, consumer, kind of the output streams, then for each claim: id, token
-- Returns the ids of claims that the consumer has lost. The owner of the newest token keeps its claim, also if a
-- fail-over has lost it from the pending list, or a takeover has moved it and not been accepted yet.
local group, consumer = ARGV[2], ARGV[3]
local function is_finished(owners, kind, id)
  return string.match(redis.call('HGET', owners, kind), '%-9$') or #redis.call('XRANGE', KEYS[1], id, id) == 0
end

touch_queue(KEYS[1])
local mine, lost = {}, {}
for i = 2, #KEYS, 2 do
  local stream, owners, id, token = KEYS[i], KEYS[i + 1], ARGV[i + 3], ARGV[i + 4]
  local pending = redis.pcall('XPENDING', KEYS[1], group, id, id, 1, consumer)
  if redis.call('EXISTS', stream) == 0 then
    drop(KEYS[1], id)
    lost[#lost + 1] = id
  elseif pending.err or not is_newest(owners, group, token, ARGV[4]) then
    lost[#lost + 1] = id
  elseif #pending == 0 and is_finished(owners, ARGV[4], id) then
    lost[#lost + 1] = id
  else
    mine[#mine + 1] = id
  end
end
if #mine > 0 then
  mine[#mine + 1] = 'FORCE'
  mine[#mine + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], group, consumer, 0, unpack(mine))
end
return lost
