-- KEYS: voices, voice names, voice sizes, voices of the owner, source, prepared voice
-- ARGV: retry, owner and name, id, record, source, prepared voice and its ttl, maximum of the owner (0: none), maximum
local names, sizes, id = KEYS[2], KEYS[3], ARGV[3]
if ARGV[1] == '1' and redis.call('HEXISTS', KEYS[1], id) == 1 then return {'kept'} end
if redis.call('HEXISTS', names, ARGV[2]) == 1 then return {'exists'} end
local of_owner, max_of_owner = redis.call('SCARD', KEYS[4]), tonumber(ARGV[8])
if max_of_owner > 0 and of_owner >= max_of_owner then return {'owner', of_owner} end
local total = redis.call('HLEN', sizes)
if total >= tonumber(ARGV[9]) then return {'total', total} end
local size = #ARGV[4] + #ARGV[5] + #ARGV[6]
local bytes = size
for _, each in ipairs(redis.call('HVALS', sizes)) do bytes = bytes + tonumber(each) end
local info = redis.pcall('INFO', 'memory')
local memory = type(info) == 'string' and tonumber(string.match(info, '\nmaxmemory:(%d+)')) or 0
if memory > 0 and bytes > memory / VOICES_SHARE then return {'memory', math.floor(memory / VOICES_SHARE)} end
redis.call('SET', KEYS[5], ARGV[5])
redis.call('SET', KEYS[6], ARGV[6], 'EX', ARGV[7])
redis.call('HSET', sizes, id, size)
redis.call('SADD', KEYS[4], id)
redis.call('HSET', names, ARGV[2], id)
redis.call('HSET', KEYS[1], id, ARGV[4])
return {'kept'}
