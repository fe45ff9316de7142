-- KEYS: the playback change feed, then for each request: playback, audio, codes, reference,
--       owners
-- ARGV: retry, ttl, entry, feed content with all entries, feed content with the request ids, then for each request:
--       id, first audio id to keep
local refused, failure = 0, nil
for i = 2, #KEYS, 5 do
  local at = 6 + 2 * (i - 2) / 5
  -- Trims first: Redis refuses no write after the first one of a script, even if its memory is full.
  redis.call('XTRIM', KEYS[i + 1], 'MINID', ARGV[at + 1])
  local reply = redis.pcall('XADD', KEYS[i], 'NOMKSTREAM', 'MAXLEN', 1, ARGV[at], 'd', ARGV[3])
  if reply and not reply.err then
    for key = i, i + 4 do redis.call('EXPIRE', KEYS[key], ARGV[2]) end
  else
    refused = refused + 1
    if reply and not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply end
  end
end
if refused == 0 then
  notify(KEYS[1], 'd', ARGV[4], ARGV[2])
elseif 5 * refused < #KEYS - 1 then
  notify(KEYS[1], 'l', ARGV[5], ARGV[2])
end
return failure or 1
