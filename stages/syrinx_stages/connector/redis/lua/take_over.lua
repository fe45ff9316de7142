-- KEYS: requests, leases. ARGV: retry, group, consumer, lease in ms or '', count, then the ids of claims that the
--       consumer holds or has ended
-- Returns {id, request} for each.
-- Uses XPENDING and XCLAIM because XAUTOCLAIM in Redis 6.2 does not report deleted entries.
local requests, leases, group, consumer, count = KEYS[1], KEYS[2], ARGV[2], ARGV[3], tonumber(ARGV[5])
local held, taken = {}, {}
for i = 6, #ARGV do held[ARGV[i]] = true end

local function take(owner)
  local found = redis.pcall('XPENDING', requests, group, '-', '+', count + #ARGV, owner)
  if found.err then return end
  for _, pending in ipairs(found) do
    local id = pending[1]
    if #taken < count and not held[id] then
      local entry = redis.call('XCLAIM', requests, group, consumer, 0, id)[1]
      if entry then
        taken[#taken + 1] = {id, entry[2][2]}
      else
        redis.call('XACK', requests, group, id)
      end
    end
  end
end

renew(requests, leases, consumer)
for _, owner in ipairs(due(leases, ARGV[4], ARGV[1])) do
  if #taken < count then take(owner) end
end
return taken
