-- KEYS: capacity. ARGV: retry, group:name, free, rate. Returns the codecs' number of reports and free requests
-- Deletes first: Redis refuses no write after the first one of a script, even if its memory is full.
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[1], ARGV[2], clock() .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('EXPIRE', KEYS[1], QUEUE_TTL_SECONDS)
local _, _, reports, free = capacity(KEYS[1], 'codecs')
return {reports, free}
