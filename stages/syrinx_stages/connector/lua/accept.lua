-- KEYS: requests, then for each claim: the output stream and the owners of its request
-- ARGV: retry, group, consumer, kind of the output stream, nonce, then each claim's id and '1' if it was taken over
-- Returns for each claim its token, or '' if there is none, and the number of deliveries since the output last grew.
-- A claim that another consumer has taken over gets no token. One that no client waits for is dropped. A fail-over may
-- lose a delivery, and the request is delivered again: its owner, if it is alive, gets the time of a lease to refresh it.
-- Redis refuses no write after the first one of a script, even if its memory is full: a served request frees memory.
touch_queue(KEYS[1])
local group, kind, accepted = ARGV[2], ARGV[4], {}
for i = 2, #KEYS, 2 do
  local stream, owners, id, taken_over = KEYS[i], KEYS[i + 1], ARGV[i + 4], ARGV[i + 5] == '1'
  local token, deliveries = '', 0
  local known, codes, audio, last = unpack(redis.call('HMGET', owners, group, 'codes', 'audio', group .. ':last'))
  local pending = redis.pcall('XPENDING', KEYS[1], group, id, id, 1, ARGV[3])
  if redis.call('EXISTS', stream, owners) < 2 then
    drop(KEYS[1], id)
  elseif not pending.err and #pending > 0 and (taken_over or not is_owned(known, ARGV[5])) then
    local at = kind == 'codes' and codes or audio
    token = string.format('%d:%s:%s:%s:%s', string.match(known, '^%d+') + 1, ARGV[5], codes, audio, nonce(known))
    redis.call('HSET', owners, group, token)
    if last ~= at then redis.call('HSET', owners, group .. ':last', at, group .. ':before', pending[1][4] - 1) end
    deliveries = pending[1][4] - redis.call('HGET', owners, group .. ':before')
  end
  accepted[#accepted + 1] = {token, deliveries}
end
return accepted
