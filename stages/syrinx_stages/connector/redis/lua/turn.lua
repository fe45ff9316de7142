-- The field `turn` of the capacity reports: `client other until`, times in ms. Until then the next free place is for a
-- client that was refused, not for the other one, which had more requests.
local function give_turn(key, client, other, ms)
  local value = string.format('%s %s %d', client, other, clock() + math.min(ms, TURN_SECONDS * 1000))
  -- A Redis without memory may refuse it.
  redis.pcall('HSET', key, 'turn', value)
end

-- Returns the client whose turn it is, and whether `client` must leave it the next free place.
local function turn_of(key, client)
  local turn, other, until_ms = string.match(redis.call('HGET', key, 'turn') or '', '^(%S*) (%S*) (%d+)$')
  return turn, other == client and clock() < tonumber(until_ms)
end
