-- KEYS: the codes and the owners of a request. ARGV: retry, the gateway's token
-- Gives the right to release a request to another gateway. Returns the claim id and the request; nil without a request.
if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
local id, request = unpack(redis.call('HMGET', KEYS[2], 'entry', 'request'))
if not request then return nil end
redis.call('HSET', KEYS[2], 'gateway', ARGV[2])
return {id, request}
