-- KEYS: requests, leases. ARGV: retry, group, consumer. The group starts at the first entry, so that no queued request
-- is skipped. A consumer has a lease before it reads.
touch_queue(KEYS[1])
local reply = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
if reply.err and not string.find(reply.err, 'BUSYGROUP', 1, true) then return reply end
renew(KEYS[1], KEYS[2], ARGV[3])
return 1
