-- KEYS: requests, the text stream of a request, its owners, its other keys
-- ARGV: retry, ttl, the last id of the stream before, then for each entry: id, content
-- Returns 0 written, now or earlier; 1 gone; or the stream's last id, if it is not the one before.
local last, letters = last_id(KEYS[2]), {}
if not last then return 1 end
if type(last) == 'table' then return last end
if last ~= ARGV[3] then return last == ARGV[#ARGV - 1] and 0 or last end
local letter, prefix = letter_to(letters, redis.call('HGET', KEYS[3], 'text:readers')), name_start(KEYS[1])
for i = 4, #ARGV, 2 do
  redis.call('XADD', KEYS[2], ARGV[i], 'd', ARGV[i + 1])
  address(letter, prefix, KEYS[2], ARGV[i], ARGV[i + 1])
end
for i = 2, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
deliver(letters)
return 0
