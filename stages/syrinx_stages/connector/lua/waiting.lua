local function last_delivered(requests, group)
  local groups = redis.pcall('XINFO', 'GROUPS', requests)
  if groups.err then return nil end
  for _, pairs in ipairs(groups) do
    local info = {}
    for i = 1, #pairs, 2 do info[pairs[i]] = pairs[i + 1] end
    if info.name == group then return info['last-delivered-id'] end
  end
end

-- Returns the number of requests, up to `limit`, that the group has not claimed, and the age of the oldest in ms.
local function waiting(requests, group, limit)
  local after = last_delivered(requests, group) or '0-0'
  local found = redis.call('XRANGE', requests, '(' .. after, '+', 'COUNT', limit)
  if #found == 0 then return 0, 0 end
  local now = redis.call('TIME')
  local since = tonumber(string.match(found[1][1], '^%d+'))
  return #found, math.max(now[1] * 1000 + math.floor(now[2] / 1000) - since, 0)
end
