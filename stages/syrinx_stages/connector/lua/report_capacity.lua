-- KEYS: capacity. ARGV: retry, group:name, free, rate. Returns the codecs' number of reports and free requests:
-- fewer than 1 unless one of them has room for a whole one
-- Deletes first: Redis refuses no write after the first one of a script, even if its memory is full.
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[1], ARGV[2], clock() .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('EXPIRE', KEYS[1], QUEUE_TTL_SECONDS)
local free, _, reports, whole = capacity(KEYS[1], 'codecs')
return {reports, tostring(whole > 0 and whole or math.min(free, 0.9))}
