-- KEYS: voices, voice names. ARGV: retry, owner and name, id. Returns the record of the voice with this name, else id
return redis.call('HGET', KEYS[1], redis.call('HGET', KEYS[2], ARGV[2]) or ARGV[3])
