-- KEYS: voices, voice names, voice sizes, voices of the owner, source, prepared voice. ARGV: retry, owner and name, id
redis.call('UNLINK', KEYS[5], KEYS[6])
redis.call('HDEL', KEYS[1], ARGV[3])
if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[3] then redis.call('HDEL', KEYS[2], ARGV[2]) end
redis.call('HDEL', KEYS[3], ARGV[3])
redis.call('SREM', KEYS[4], ARGV[3])
return 1
