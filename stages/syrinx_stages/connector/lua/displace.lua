-- Removes the youngest waiting request of the client that has most, if `client` would still have fewer than it after
-- that. Counts the newest FAIRNESS_REQUESTS requests that have not ended. Returns whether one was removed, and whether
-- any client has so many more.
local function displace(requests, control, client, maxlen, ttl)
  local waits, held, youngest, largest, most = {}, {}, {}, nil, 0
  local after = last_delivered(requests, 'talkers') or '0-0'
  for _, entry in ipairs(redis.call('XRANGE', requests, '(' .. after, '+', 'COUNT', FAIRNESS_REQUESTS)) do
    waits[entry[1]] = true
  end
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', FAIRNESS_REQUESTS)) do
    local owner = entry[2][4]
    held[owner] = (held[owner] or 0) + 1
    most = math.max(most, held[owner])
    if waits[entry[1]] and not youngest[owner] then youngest[owner] = entry end
  end
  for owner in pairs(youngest) do
    local more = largest and held[owner] - held[largest]
    if not largest or more > 0 or (more == 0 and owner < largest) then largest = owner end
  end
  local enough = (held[client] or 0) + 2
  if not largest or held[largest] < enough then return false, most >= enough end
  local id, request_id = youngest[largest][1], youngest[largest][2][6]
  redis.call('XACK', requests, 'codecs', id)
  redis.call('XDEL', requests, id)
  redis.call('XADD', control, 'MAXLEN', '~', maxlen, '*', 'd', request_id)
  redis.call('EXPIRE', control, ttl)
  return true, true
end
