-- KEYS: a stream. Returns the last ID that was ever written to it, or nil
local pairs = redis.pcall('XINFO', 'STREAM', KEYS[1])
if pairs.err then return not string.find(pairs.err, 'no such key', 1, true) and pairs end
for i = 1, #pairs, 2 do
  if pairs[i] == 'last-generated-id' then return pairs[i + 1] end
end
