-- Returns the ID of the last request that each group was delivered, by group: '0-0' if none.
local function last_delivered(requests)
  local last, groups = {}, redis.pcall('XINFO', 'GROUPS', requests)
  if groups.err then return last end
  for _, pairs in ipairs(groups) do
    local info = {}
    for i = 1, #pairs, 2 do info[pairs[i]] = pairs[i + 1] end
    last[info.name] = info['last-delivered-id']
  end
  return last
end

-- The key `waiting` indexes the requests that no talker has claimed: a sorted set of '<ID> <client> <request id>', all
-- with the same score, so in the order of their IDs, which are padded to be compared as text. A claim does not change it,
-- nor does a codec that ends a request: what precedes the first waiting request does not count, and is removed later.
local function padded(id)
  return string.format('%015d-%09d', string.match(id, '(%d+)-(%d+)'))
end

-- Adds a request, and removes those before `first`.
local function index(waiting, first, id, client, request_id)
  redis.call('ZREMRANGEBYLEX', waiting, '-', '(' .. first)
  redis.call('ZADD', waiting, 0, padded(id) .. ' ' .. client .. ' ' .. request_id)
  redis.call('EXPIRE', waiting, QUEUE_TTL_SECONDS)
end

local function unindex(waiting, id)
  redis.call('ZREMRANGEBYLEX', waiting, '[' .. padded(id), '(' .. padded(id) .. '!')
end

-- Returns the number of waiting requests, the age of the oldest in ms, and its padded ID, else what is after all of them.
-- Writes nothing: see `is_overloaded`.
local function waiting_requests(requests, waiting, last_claimed)
  local oldest = redis.call('XRANGE', requests, '(' .. (last_claimed or '0-0'), '+', 'COUNT', 1)[1]
  if not oldest then return 0, 0, '~' end
  local first, since = padded(oldest[1]), string.match(oldest[1], '^%d+')
  return math.max(redis.call('ZLEXCOUNT', waiting, '[' .. first, '+'), 1), math.max(clock() - since, 0), first
end
