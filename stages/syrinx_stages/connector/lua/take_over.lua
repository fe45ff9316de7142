-- KEYS: requests. ARGV: retry, group, consumer, lease in ms, count, '1' to include the consumer's own claims, then the
--       ids of claims that it holds or has ended
-- After a lost connection only claims that were handed over count as expired: see `RedisConsumer._take_over`.
-- Returns {id, request} for each. Uses XPENDING and XCLAIM because XAUTOCLAIM in Redis 6.2 does not report
-- deleted entries.
local requests, group, consumer, count = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local held, taken = {}, {}
for i = 7, #ARGV do held[ARGV[i]] = true end

local function take(found)
  if found.err then return end
  for _, pending in ipairs(found) do
    local id = pending[1]
    if #taken < count and not held[id] then
      held[id] = true
      local entry = redis.call('XCLAIM', requests, group, consumer, 0, id)[1]
      if entry then
        taken[#taken + 1] = {id, entry[2][2]}
      else
        redis.call('XACK', requests, group, id)
      end
    end
  end
end

-- Before Redis 7.2 a blocking read that times out does not update the consumer's idle time. A read of its own claims,
-- here after the last possible ID, does.
redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'STREAMS', requests, '18446744073709551615-0')
touch_queue(requests)
if ARGV[6] == '1' then take(redis.pcall('XPENDING', requests, group, '-', '+', 10000, consumer)) end
take(redis.pcall('XPENDING', requests, group, 'IDLE', ARGV[1] == '1' and '43200000' or ARGV[4], '-', '+', count + #ARGV))
return taken
