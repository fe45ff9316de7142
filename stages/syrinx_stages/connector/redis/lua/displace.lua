-- Removes the youngest waiting request of the client that has most, if `client` would still have fewer than it after
-- that. `queue`: the keys `requests` and `waiting`, what `waiting_requests` has returned as `first`, `last_claimed`.
-- Counts the newest FAIRNESS_REQUESTS requests that have not ended. Returns whether one was removed, how many more
-- the client with most requests has, waiting or not, and that client.
-- Those that wait are newer than all others, and read from the index, which does not have the requests themselves.
local function displace(queue, client, control, maxlen, ttl)
  local held, youngest, largest, most = {}, {}, nil, nil
  local function count(owner)
    held[owner] = (held[owner] or 0) + 1
    if not most or held[owner] > held[most] then most = owner end
  end
  local newest = redis.call('ZREVRANGEBYLEX', queue.waiting, '+', '[' .. queue.first, 'LIMIT', 0, FAIRNESS_REQUESTS)
  for _, member in ipairs(newest) do
    local owner = string.match(member, '^%S+ (%S*) ')
    count(owner)
    youngest[owner] = youngest[owner] or member
  end
  local others = FAIRNESS_REQUESTS - #newest
  if others > 0 then
    for _, entry in ipairs(redis.call('XREVRANGE', queue.requests, queue.last_claimed or '0-0', '-', 'COUNT', others)) do
      count(entry[2][4])
    end
  end
  for owner in pairs(youngest) do
    local more = largest and held[owner] - held[largest]
    if not largest or more > 0 or (more == 0 and owner < largest) then largest = owner end
  end
  local own = held[client] or 0
  local more = most and held[most] - own or 0
  if not largest or held[largest] < own + 2 then return false, more, most end
  local ms, sequence, request_id = string.match(youngest[largest], '^0*(%d+)-0*(%d+) %S* (.*)$')
  local id = ms .. '-' .. sequence
  redis.call('XACK', queue.requests, 'codec', id)
  redis.call('ZREM', queue.waiting, youngest[largest])
  if redis.call('XDEL', queue.requests, id) == 0 then return false, more, most end
  redis.call('XADD', control, 'MAXLEN', '~', maxlen, '*', 'd', request_id)
  redis.call('EXPIRE', control, ttl)
  return true, more, most
end
