-- KEYS: requests, reference, owners, the request's streams
-- ARGV: retry, request, id and content of a stream's first entry, ttl, max_queue, max_queue_ms, has reference,
--       reference
local requests = KEYS[1]
if ARGV[1] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', 1000)) do
    if entry[2][2] == ARGV[2] then return {'queued', entry[1]} end
  end
end
local max_queue = tonumber(ARGV[6])
-- Unclaimed requests are counted only if the stream is long enough.
local full = redis.call('XLEN', requests) >= max_queue
local length, oldest = waiting(requests, 'talkers', full and math.max(max_queue, 1) or 1)
if (full and length >= max_queue) or oldest > tonumber(ARGV[7]) then return {'full', length, oldest} end
if redis.call('EXISTS', KEYS[4]) == 1 then return {'in use'} end
for _, group in ipairs({'talkers', 'codecs'}) do
  if not last_delivered(requests, group) then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end
end
redis.call('HSET', KEYS[3], 'talkers', 0, 'codecs', 0)
redis.call('EXPIRE', KEYS[3], ARGV[5])
for i = 4, #KEYS do
  redis.call('XADD', KEYS[i], ARGV[3], 'd', ARGV[4])
  redis.call('EXPIRE', KEYS[i], ARGV[5])
end
if ARGV[8] == '1' then redis.call('SET', KEYS[2], ARGV[9], 'EX', ARGV[5]) end
local id = redis.call('XADD', requests, '*', 'd', ARGV[2])
touch_queue(requests)
return {'queued', id}
