-- KEYS: an inbox, writers, then for each stream: the stream, the owners of its request
-- ARGV: retry, then for each stream: kind, id after which to read, '1' if the stream may end before that
-- Adds the inbox to the readers of the streams. Returns for each 1 if it ends before the id, else 0; and the entries, or
-- the error that it gave. A stream that ends before the id is read from its start: the server has lost what followed.
-- Redis refuses no write after the first one of a script, even if its memory is full.
redis.call('EXPIRE', KEYS[1], INBOX_TTL_SECONDS)
local found = {}
for i = 3, #KEYS, 2 do
  local at = 2 + 3 * (i - 3) / 2
  local kind, after = ARGV[at], ARGV[at + 1]
  add_reader(KEYS[2], KEYS[i + 1], kind, KEYS[1])
  local is_ahead = ARGV[at + 2] == '1' and precedes(end_of(KEYS[i]) or after, after)
  found[#found + 1] = {is_ahead and 1 or 0, redis.pcall('XRANGE', KEYS[i], '(' .. (is_ahead and '0-0' or after), '+')}
end
return found
