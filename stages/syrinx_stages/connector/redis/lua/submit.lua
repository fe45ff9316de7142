-- KEYS: requests, waiting, capacity, control, writers, reference, owners, the request's streams
-- ARGV: retry, request, id and content of a stream's first entry, ttl, max_queue, max_queue_ms, has reference,
--       reference, client, request id, maximum length and ttl of control, token of a gateway if another one may
--       continue the request, else ''; '1' if there was no request with this id before
local requests, waiting, reports, control, writers, reference, owners = unpack(KEYS, 1, 7)
if ARGV[1] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', 1000)) do
    if entry[2][2] == ARGV[2] then return {'queued', entry[1]} end
  end
end
local max_queue, max_queue_ms = tonumber(ARGV[6]), tonumber(ARGV[7])
local delivered = last_delivered(requests)
local length, oldest, first = waiting_requests(requests, waiting, delivered.talker)
local sums = capacity_sums(reports)
local wait, limit = expected_wait(requests, sums, length), max_queue_ms / BURST_SHARE
local crowded = is_overloaded(reports, sums) or oldest > max_queue_ms / STANDING_SHARE
if crowded and length > 0 then
  limit = max_queue_ms / STANDING_SHARE
elseif length == 0 and not crowded then
  limit = max_queue_ms
end
local turn, must_yield = turn_of(reports, ARGV[10])
if must_yield then return {'another is next', wait} end
if length >= max_queue or oldest > max_queue_ms or wait > limit then
  local queue = {requests = requests, waiting = waiting, first = first, last_claimed = delivered.talker}
  local displaced, more, most = displace(queue, ARGV[10], control, ARGV[12], ARGV[13])
  -- A client with fewer requests than another one may wait even in an overload.
  local may_wait = more >= 2 and length < max_queue and wait <= max_queue_ms / BURST_SHARE
  if max_queue == 0 or not (displaced or may_wait) then
    if more > 0 then give_turn(reports, ARGV[10], most, math.max(oldest, wait, 1000) + 1000) end
    return {'full', length, oldest, wait}
  end
end
local room, memory = has_room(requests, #ARGV[2] + #ARGV[9])
if not room then return {'no room', memory} end
if redis.call('EXISTS', KEYS[8]) == 1 then return {'in use'} end
for _, group in ipairs({'talker', 'codec'}) do
  if not delivered[group] then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end
end
local id = redis.call('XADD', requests, '*', 'd', ARGV[2], 'c', ARGV[10], 'i', ARGV[11])
index(waiting, first, id, ARGV[10], ARGV[11])
-- The token before the first claim: a request that is submitted again refuses the owners of the one that was lost.
local token = '0:' .. string.gsub(id, '-', '')
redis.call('HSET', owners, 'talker', token, 'codec', token)
if ARGV[15] ~= '1' then redis.call('UNLINK', writers) end
if ARGV[14] ~= '' then redis.call('HSET', owners, 'gateway', ARGV[14], 'entry', id, 'request', ARGV[2]) end
redis.call('EXPIRE', owners, ARGV[5])
for i = 8, #KEYS do
  redis.call('XADD', KEYS[i], ARGV[3], 'd', ARGV[4])
  redis.call('EXPIRE', KEYS[i], ARGV[5])
end
if ARGV[8] == '1' then redis.call('SET', reference, ARGV[9], 'EX', ARGV[5]) end
touch_queue(requests)
if turn == ARGV[10] then redis.call('HDEL', reports, 'turn') end
return {'queued', id}
