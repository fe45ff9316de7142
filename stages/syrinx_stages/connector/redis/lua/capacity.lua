-- Capacity reports: a hash with `time free rate` for each replica, under `group:name`. Times in ms, rate in requests a
-- second. `sum:group`: the sums of what a group's reports add. `due`: when the first of all reports may expire. They are
-- counted anew then, or without `due`; until then a report changes the sums by what it differs from the one before it.
-- `arrivals`: `time rate` of the requests that gateways submit, also of those that are refused.

-- Returns what a report adds to its group's sums: free requests, negative if there are too many, and the rate (0 if
-- unknown), both in thousandths; how many requests the replica can take now, as a part of one is not free yet; and 1.
local function addends(report)
  local free, rate = string.match(report, '^%d+ ([%d.-]+) ([%d.]+)$')
  return {math.floor(free * 1000 + 0.5), math.floor(rate * 1000 + 0.5), math.max(math.floor(free), 0), 1}
end

local function add(sum, report, sign)
  for i, addend in ipairs(addends(report)) do sum[i] = sum[i] + sign * addend end
end

local function store_sums(key, sums, ...)
  local talkers, codecs = table.concat(sums.talker, ' '), table.concat(sums.codec, ' ')
  return redis.pcall('HSET', key, 'due', sums.due, 'sum:talker', talkers, 'sum:codec', codecs, ...)
end

local function count_reports(key)
  local now, found, expired = clock(), redis.call('HGETALL', key), {}
  local sums, oldest = {talker = {0, 0, 0, 0}, codec = {0, 0, 0, 0}}, now
  for i = 1, #found, 2 do
    local sum, at = sums[string.match(found[i], '^(%a+):')], tonumber(string.match(found[i + 1], '^%d+'))
    if sum and now - at > CAPACITY_SECONDS * 1000 then
      expired[#expired + 1] = found[i]
    elseif sum then
      add(sum, found[i + 1], 1)
      oldest = math.min(oldest, at)
    end
  end
  sums.due = oldest + CAPACITY_SECONDS * 1000
  -- A Redis without memory refuses the first write of a script. That must remain the one of the request.
  if type(store_sums(key, sums)) == 'number' then
    redis.call('EXPIRE', key, QUEUE_TTL_SECONDS)
    for _, name in ipairs(expired) do redis.call('HDEL', key, name) end
  end
  return sums
end

local function parsed(text)
  local sum = {}
  for number in string.gmatch(text, '%S+') do sum[#sum + 1] = tonumber(number) end
  return sum
end

-- Returns the sums by group, and `due`; and the report that they include under a name, if one is given. Does not depend on
-- the number of replicas, except when reports may have expired.
local function capacity_sums(key, name)
  local due, talkers, codecs, report = unpack(redis.call('HMGET', key, 'due', 'sum:talker', 'sum:codec', name or 'due'))
  if not due or clock() > tonumber(due) then return count_reports(key), name and redis.call('HGET', key, name) end
  return {due = tonumber(due), talker = parsed(talkers), codec = parsed(codecs)}, report
end

-- Returns the free requests of the replicas of a group, negative if they have too many, their rate (0 if unknown), the
-- number of reports, and how many requests they can take now.
local function capacity(sums, group)
  local free, rate, whole, reports = unpack(sums[group])
  return free / 1000, rate / 1000, reports, whole
end

-- Counts a request that arrives. Returns whether more arrive than are served; false while no rate is known.
local function is_overloaded(key, sums)
  local now, rate = clock(), math.huge
  local at, arrivals = string.match(redis.call('HGET', key, 'arrivals') or '0 0', '^(%d+) ([%d.]+)$')
  arrivals = arrivals * math.exp((at - now) / 1000 / ARRIVALS_SECONDS) + 1 / ARRIVALS_SECONDS
  -- It may be refused: see `count_reports`.
  local counted = redis.pcall('HSET', key, 'arrivals', string.format('%d %.3f', now, arrivals))
  if type(counted) == 'number' then redis.call('EXPIRE', key, QUEUE_TTL_SECONDS) end
  for _, group in ipairs({'talker', 'codec'}) do
    local _, served = capacity(sums, group)
    if served > 0 then rate = math.min(rate, served) end
  end
  return arrivals > rate
end

-- Returns the ms that a request with `ahead` requests before it will wait; 0 if no group with a known rate is busy.
-- Without an unfinished request no replica is busy, whatever its last report says.
local function expected_wait(requests, sums, ahead)
  local wait = 0
  if redis.call('XLEN', requests) == 0 then return wait end
  for _, group in ipairs({'talker', 'codec'}) do
    local free, rate, _, whole = capacity(sums, group)
    if rate > 0 and whole <= ahead then wait = math.max(wait, 1000 * (ahead + 1 - free) / rate) end
  end
  return math.floor(wait)
end
