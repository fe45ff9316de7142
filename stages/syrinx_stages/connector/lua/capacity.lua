-- Capacity reports: a hash with `time free rate` for each replica, under `group:name`. Times in ms, rate in requests a
-- second. `arrivals`: `time rate` of the requests that gateways submit, also of those that are refused.
local function clock()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Returns the free requests of the replicas of a group, negative if they have too many, their rate (0 if unknown), the
-- number of reports, and how many requests they can take now: a part of a free one is not free yet.
local function capacity(key, group)
  local free, rate, reports, whole, now = 0, 0, 0, 0, clock()
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    if string.sub(found[i], 1, #group + 1) == group .. ':' then
      local at, its_free, its_rate = string.match(found[i + 1], '^(%d+) ([%d.-]+) ([%d.]+)$')
      if now - at > CAPACITY_SECONDS * 1000 then
        redis.call('HDEL', key, found[i])
      else
        free, rate, reports = free + its_free, rate + its_rate, reports + 1
        whole = whole + math.max(math.floor(its_free), 0)
      end
    end
  end
  return free, rate, reports, whole
end

-- Counts a request that arrives. Returns whether more arrive than are served; false while no rate is known.
local function is_overloaded(key)
  local now, rate = clock(), math.huge
  local at, arrivals = string.match(redis.call('HGET', key, 'arrivals') or '0 0', '^(%d+) ([%d.]+)$')
  arrivals = arrivals * math.exp((at - now) / 1000 / ARRIVALS_SECONDS) + 1 / ARRIVALS_SECONDS
  -- A Redis without memory refuses the first write of a script. That must remain the one of the request.
  local counted = redis.pcall('HSET', key, 'arrivals', string.format('%d %.3f', now, arrivals))
  if type(counted) == 'number' then redis.call('EXPIRE', key, QUEUE_TTL_SECONDS) end
  for _, group in ipairs({'talkers', 'codecs'}) do
    local _, served = capacity(key, group)
    if served > 0 then rate = math.min(rate, served) end
  end
  return arrivals > rate
end

-- Returns the ms that a request with `ahead` requests before it will wait; 0 if no group with a known rate is busy.
local function expected_wait(key, ahead)
  local wait = 0
  for _, group in ipairs({'talkers', 'codecs'}) do
    local free, rate, _, whole = capacity(key, group)
    if rate > 0 and whole <= ahead then wait = math.max(wait, 1000 * (ahead + 1 - free) / rate) end
  end
  return math.floor(wait)
end
