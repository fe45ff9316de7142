-- KEYS: requests. ARGV: retry, group. The group starts at the first entry, so that no queued request is skipped.
touch_queue(KEYS[1])
local reply = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
if reply.err and not string.find(reply.err, 'BUSYGROUP', 1, true) then return reply end
touch_queue(KEYS[1])
return 1
