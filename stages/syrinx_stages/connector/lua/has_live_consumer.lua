-- KEYS: requests. ARGV: retry, group, milliseconds. Returns 1 if a consumer was active in that time
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[2])
for _, pairs in ipairs(consumers) do
  for i = 1, #pairs, 2 do
    if pairs[i] == 'idle' and pairs[i + 1] <= tonumber(ARGV[3]) then return 1 end
  end
end
return 0
