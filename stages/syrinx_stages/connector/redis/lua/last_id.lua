-- Returns the last ID that was ever written to a stream, nil if it does not exist, or an error reply.
local function last_id(stream)
  local pairs = redis.pcall('XINFO', 'STREAM', stream)
  if pairs.err then return not string.find(pairs.err, 'no such key', 1, true) and pairs or nil end
  for i = 1, #pairs, 2 do
    if pairs[i] == 'last-generated-id' then return pairs[i + 1] end
  end
end
