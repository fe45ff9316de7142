-- KEYS and ARGV: as in cancel. Deletes the request unless a talker has claimed it. Returns 1 if it was deleted
local after = last_delivered(KEYS[1]).talker or '0-0'
if #redis.call('XRANGE', KEYS[1], '(' .. after, ARGV[2], 'COUNT', 1) == 0 then return 0 end
return cancel()
