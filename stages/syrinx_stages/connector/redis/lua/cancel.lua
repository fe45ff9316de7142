-- Deletes a request. KEYS: requests, waiting, control, all keys of the request
-- ARGV: retry, claim id, request id, maximum length and ttl of control. Returns 1 if it had not ended
local function cancel()
  redis.call('XACK', KEYS[1], 'talker', ARGV[2])
  redis.call('XACK', KEYS[1], 'codec', ARGV[2])
  local unfinished = redis.call('XDEL', KEYS[1], ARGV[2])
  unindex(KEYS[2], ARGV[2])
  redis.call('UNLINK', unpack(KEYS, 4))
  if unfinished == 1 then
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'd', ARGV[3])
    redis.call('EXPIRE', KEYS[3], ARGV[5])
  end
  return unfinished
end
