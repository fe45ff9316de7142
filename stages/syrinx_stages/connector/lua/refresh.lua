-- KEYS: requests, then the output stream of each claim. ARGV: retry, group, consumer, then each claim's id
-- Returns the ids of claims that the consumer has lost. The owner is checked first, as XCLAIM would take them back.
touch_queue(KEYS[1])
local mine, lost = {}, {}
for i = 2, #KEYS do
  local id = ARGV[i + 2]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1, ARGV[3])
  if pending.err or #pending == 0 then
    lost[#lost + 1] = id
  elseif redis.call('EXISTS', KEYS[i]) == 0 then
    finish(KEYS[1], ARGV[2], id)
    lost[#lost + 1] = id
  else
    mine[#mine + 1] = id
  end
end
if #mine > 0 then
  mine[#mine + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, unpack(mine))
end
return lost
