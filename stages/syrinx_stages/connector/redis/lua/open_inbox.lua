-- KEYS: an inbox. ARGV: retry. Creates it, or extends its life: writers add only to an inbox that exists.
-- Redis refuses no write after the first one of a script, even if its memory is full.
redis.call('EXPIRE', KEYS[1], INBOX_TTL_SECONDS)
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XADD', KEYS[1], '*', 'd', '') end
redis.call('EXPIRE', KEYS[1], INBOX_TTL_SECONDS)
return 1
