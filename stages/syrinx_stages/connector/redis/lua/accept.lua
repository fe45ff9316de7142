-- KEYS: requests, writers, then for each claim: codes, audio and owners of its request
-- ARGV: retry, group, consumer, kind of the output stream, nonce, then each claim's id and '1' if it was taken over
-- Returns for each claim its token, or '' if there is none, and the number of deliveries since the output last grew.
-- A claim that another consumer has taken over gets no token. One that no client waits for is dropped. A fail-over may
-- lose a delivery, and the request is delivered again: its owner, if it is alive, gets the time of a lease to refresh it.
-- Redis refuses no write after the first one of a script, even if its memory is full: a served request frees memory.
touch_queue(KEYS[1])
local group, kind, accepted = ARGV[2], ARGV[4], {}
for i = 3, #KEYS, 3 do
  local codes, audio, owners = end_of(KEYS[i]), end_of(KEYS[i + 1]), KEYS[i + 2]
  local argument = 6 + 2 * (i - 3) / 3
  local id, taken_over = ARGV[argument], ARGV[argument + 1] == '1'
  local token, deliveries = '', 0
  local known, last = unpack(redis.call('HMGET', owners, group, group .. ':last'))
  local pending = redis.pcall('XPENDING', KEYS[1], group, id, id, 1, ARGV[3])
  if not (known and codes and audio) then
    drop(KEYS[1], id)
  elseif not pending.err and #pending > 0 and (taken_over or not is_owned(known, ARGV[5])) then
    local at = kind == 'codes' and codes or audio
    token = string.format('%d:%s:%s:%s:%s', string.match(known, '^%d+') + 1, ARGV[5], codes, audio, nonce(known))
    set_token(KEYS[2], owners, group, token, known)
    if last ~= at then redis.call('HSET', owners, group .. ':last', at, group .. ':before', pending[1][4] - 1) end
    deliveries = pending[1][4] - redis.call('HGET', owners, group .. ':before')
  end
  accepted[#accepted + 1] = {token, deliveries}
end
return accepted
