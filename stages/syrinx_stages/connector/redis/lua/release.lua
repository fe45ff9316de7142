-- KEYS and ARGV: as in cancel, and the token of the gateway of a request that another one may continue, else ''
local gateway = redis.call('HGET', KEYS[5], 'gateway')
if gateway and gateway ~= ARGV[6] then return 0 end
return cancel()
