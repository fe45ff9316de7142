-- KEYS: voices, prepared voice. ARGV: retry, id, prepared voice and its ttl. Writes nothing for a voice that was deleted
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
return 1
