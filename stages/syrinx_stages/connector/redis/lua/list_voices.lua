-- KEYS: voices, voices of the owner. ARGV: retry. Returns the records of the owner's voices
local ids, records = redis.call('SMEMBERS', KEYS[2]), {}
table.sort(ids)
for _, id in ipairs(ids) do records[#records + 1] = redis.call('HGET', KEYS[1], id) or nil end
return records
