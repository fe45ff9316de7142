-- Removes the youngest waiting request of the client that has most, if `client` would still have fewer than it after
-- that. Counts the newest FAIRNESS_REQUESTS requests that have not ended. Returns whether one was removed, how many more
-- the client with most requests has, waiting or not, and that client.
local function displace(requests, control, client, maxlen, ttl)
  local waits, held, youngest, largest, most = {}, {}, {}, nil, nil
  local after = last_delivered(requests, 'talkers') or '0-0'
  for _, entry in ipairs(redis.call('XRANGE', requests, '(' .. after, '+', 'COUNT', FAIRNESS_REQUESTS)) do
    waits[entry[1]] = true
  end
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', FAIRNESS_REQUESTS)) do
    local owner = entry[2][4]
    held[owner] = (held[owner] or 0) + 1
    if not most or held[owner] > held[most] then most = owner end
    if waits[entry[1]] and not youngest[owner] then youngest[owner] = entry end
  end
  for owner in pairs(youngest) do
    local more = largest and held[owner] - held[largest]
    if not largest or more > 0 or (more == 0 and owner < largest) then largest = owner end
  end
  local own = held[client] or 0
  local more = most and held[most] - own or 0
  if not largest or held[largest] < own + 2 then return false, more, most end
  local id, request_id = youngest[largest][1], youngest[largest][2][6]
  redis.call('XACK', requests, 'codecs', id)
  redis.call('XDEL', requests, id)
  redis.call('XADD', control, 'MAXLEN', '~', maxlen, '*', 'd', request_id)
  redis.call('EXPIRE', control, ttl)
  return true, more, most
end
