-- KEYS: requests, then the output stream of each claim. ARGV: retry, group, then each claim's id
-- Returns 1 for each claim that a client waits for, else 0; the latter claims are finished.
local wanted = {}
for i = 2, #KEYS do
  wanted[i - 1] = redis.call('EXISTS', KEYS[i])
  if wanted[i - 1] == 0 then finish(KEYS[1], ARGV[2], ARGV[i + 1]) end
end
return wanted
