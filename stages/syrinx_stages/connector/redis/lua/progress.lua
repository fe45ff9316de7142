-- KEYS: requests, leases of talkers, leases of codecs, then streams of a request
-- ARGV: retry, its entry
-- Returns the talker that has claimed it, how many ms ago that renewed its lease, the same of the codec, and the last ID
-- of each stream
local found = {}
for number, group in ipairs({'talker', 'codec'}) do
  local claim = redis.pcall('XPENDING', KEYS[1], group, ARGV[2], ARGV[2], 1)
  local owner = not claim.err and claim[1] and claim[1][2] or ''
  local renewed = redis.call('ZSCORE', KEYS[number + 1], owner)
  found[2 * number - 1], found[2 * number] = owner, renewed and clock() - renewed or -1
end
for number = 4, #KEYS do
  local last = last_id(KEYS[number])
  found[number + 1] = type(last) == 'string' and last or ''
end
return found
