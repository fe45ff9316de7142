-- KEYS: capacity. ARGV: retry, group:name, free, rate. Returns the codecs' number of reports and free requests
redis.call('HSET', KEYS[1], ARGV[2], clock() .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('EXPIRE', KEYS[1], QUEUE_TTL_SECONDS)
local free, _, reports = capacity(KEYS[1], 'codecs')
return {reports, free}
