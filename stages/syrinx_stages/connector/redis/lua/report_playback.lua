-- KEYS: requests, then for each report: playback, audio, codes and owners of its request; then keys whose life is extended
-- ARGV: retry, ttl, entry, number of reports, then for each: id, first audio id to keep, and the last id of codes to
--       delete, or ''
-- Deletes the codes up to an id, but not what is before the first frame: a voice's reference. If they are the last ones,
-- a fail-over has lost what followed: the next owner goes on from them.
local function delete_codes(stream, last)
  if not precedes(last, end_of(stream) or last) then return end
  for _, entry in ipairs(redis.call('XRANGE', stream, '1', last)) do redis.call('XDEL', stream, entry[1]) end
end
local failure, letters, prefix, reports = nil, {}, name_start(KEYS[1]), tonumber(ARGV[4])
for number = 1, reports do
  local key, at = 4 * number - 2, 3 * number + 2
  -- Trims first: Redis refuses no write after the first one of a script, even if its memory is full.
  redis.call('XTRIM', KEYS[key + 1], 'MINID', ARGV[at + 1])
  if ARGV[at + 2] ~= '' then delete_codes(KEYS[key + 2], ARGV[at + 2]) end
  -- To trim exactly, Redis passes all entries that it has trimmed from the block before.
  local reply = redis.pcall('XADD', KEYS[key], 'NOMKSTREAM', 'MAXLEN', '~', 1, ARGV[at], 'd', ARGV[3])
  if reply and not reply.err then
    local readers = redis.call('HGET', KEYS[key + 3], 'played:readers')
    address(letter_to(letters, readers), prefix, KEYS[key], ARGV[at], ARGV[3])
  elseif reply and not string.find(reply.err, 'equal or smaller', 1, true) then
    failure = reply
  end
end
for i = 2 + 4 * reports, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
deliver(letters)
return failure or 1
