-- KEYS: requests, capacity, control, reference, owners, the request's streams
-- ARGV: retry, request, id and content of a stream's first entry, ttl, max_queue, max_queue_ms, has reference,
--       reference, client, request id, maximum length and ttl of control
local requests, reports = KEYS[1], KEYS[2]
if ARGV[1] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', 1000)) do
    if entry[2][2] == ARGV[2] then return {'queued', entry[1]} end
  end
end
local max_queue, max_queue_ms = tonumber(ARGV[6]), tonumber(ARGV[7])
local length, oldest = waiting(requests, 'talkers', math.max(max_queue, 1))
local wait, limit = expected_wait(reports, length), max_queue_ms / BURST_SHARE
local crowded = is_overloaded(reports) or oldest > max_queue_ms / STANDING_SHARE
if crowded and length > 0 then
  limit = max_queue_ms / STANDING_SHARE
elseif length == 0 and not crowded then
  limit = max_queue_ms
end
local turn, must_yield = turn_of(reports, ARGV[10])
if must_yield then return {'another is next', wait} end
if length >= max_queue or oldest > max_queue_ms or wait > limit then
  local displaced, more, most = displace(requests, KEYS[3], ARGV[10], ARGV[12], ARGV[13])
  -- A client with fewer requests than another one may wait even in an overload.
  local may_wait = more >= 2 and length < max_queue and wait <= max_queue_ms / BURST_SHARE
  if max_queue == 0 or not (displaced or may_wait) then
    if more > 0 then give_turn(reports, ARGV[10], most, math.max(oldest, wait, 1000) + 1000) end
    return {'full', length, oldest, wait}
  end
end
local room, memory = has_room(requests, #ARGV[2] + #ARGV[9])
if not room then return {'no room', memory} end
if redis.call('EXISTS', KEYS[6]) == 1 then return {'in use'} end
for _, group in ipairs({'talkers', 'codecs'}) do
  if not last_delivered(requests, group) then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end
end
local id = redis.call('XADD', requests, '*', 'd', ARGV[2], 'c', ARGV[10], 'i', ARGV[11])
-- The token before the first claim: a request that is submitted again refuses the owners of the one that was lost.
local token = '0:' .. string.gsub(id, '-', '')
redis.call('HSET', KEYS[5], 'talkers', token, 'codecs', token, 'codes', ARGV[3], 'audio', ARGV[3])
redis.call('EXPIRE', KEYS[5], ARGV[5])
for i = 6, #KEYS do
  redis.call('XADD', KEYS[i], ARGV[3], 'd', ARGV[4])
  redis.call('EXPIRE', KEYS[i], ARGV[5])
end
if ARGV[8] == '1' then redis.call('SET', KEYS[4], ARGV[9], 'EX', ARGV[5]) end
touch_queue(requests)
if turn == ARGV[10] then redis.call('HDEL', reports, 'turn') end
return {'queued', id}
