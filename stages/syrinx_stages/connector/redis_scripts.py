"""What must happen at once inside Redis, in Lua. Nothing newer than Redis 6.2.

Every key is passed in KEYS and carries the shard's hash tag. ARGV[1] is "1" if an earlier attempt of the same call may
have been carried out: its connection was lost before the reply came. An entry's only field is `d`.
"""

from __future__ import annotations

import hashlib


class Script:
    """A script and the digest under which Redis keeps it."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


FEED_RETENTION_SECONDS = 5
"""News are kept for so long: who did not read them for longer looks at the streams themselves."""

_TELL = f"""
-- Says what was written: field `d` with the entries, or `l` with the requests whose streams have something new.
local function tell(news, field, content, ttl)
  local oldest = redis.call('TIME')[1] - {FEED_RETENTION_SECONDS} .. '000'
  redis.call('XADD', news, 'MINID', '~', oldest, '*', field, content)
  redis.call('EXPIRE', news, ttl)
end
"""

_FINISH = """
-- What the codecs have finished is done altogether.
local function finish(requests, group, id)
  redis.call('XACK', requests, group, id)
  if group == 'codecs' then
    redis.call('XACK', requests, 'talkers', id)
    redis.call('XDEL', requests, id)
  end
end
"""

_WAITING = """
local function last_delivered(requests, group)
  local groups = redis.pcall('XINFO', 'GROUPS', requests)
  if groups.err then return nil end
  for _, pairs in ipairs(groups) do
    local info = {}
    for i = 1, #pairs, 2 do info[pairs[i]] = pairs[i + 1] end
    if info.name == group then return info['last-delivered-id'] end
  end
end

-- Up to `limit` requests that the group has not been given, and the milliseconds the oldest has waited.
local function waiting(requests, group, limit)
  local after = last_delivered(requests, group) or '0-0'
  local found = redis.call('XRANGE', requests, '(' .. after, '+', 'COUNT', limit)
  if #found == 0 then return 0, 0 end
  local now = redis.call('TIME')
  local since = tonumber(string.match(found[1][1], '^%d+'))
  return #found, math.max(now[1] * 1000 + math.floor(now[2] / 1000) - since, 0)
end
"""

SUBMIT = Script(
    _WAITING
    + """
-- KEYS: requests, reference, the request's streams
-- ARGV: again, request, opened id, opened, ttl, max_queue, max_queue_ms, has reference, reference
local requests = KEYS[1]
if ARGV[1] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', 1000)) do
    if entry[2][2] == ARGV[2] then return {'queued', entry[1]} end
  end
end
local most = tonumber(ARGV[6])
-- Counting is only needed where the stream is long enough.
local full = redis.call('XLEN', requests) >= most
local length, oldest = waiting(requests, 'talkers', full and math.max(most, 1) or 1)
if (full and length >= most) or oldest > tonumber(ARGV[7]) then return {'full', length, oldest} end
if redis.call('EXISTS', KEYS[3]) == 1 then return {'in use'} end
for _, group in ipairs({'talkers', 'codecs'}) do
  if not last_delivered(requests, group) then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end
end
for i = 3, #KEYS do
  redis.call('XADD', KEYS[i], ARGV[3], 'd', ARGV[4])
  redis.call('EXPIRE', KEYS[i], ARGV[5])
end
if ARGV[8] == '1' then redis.call('SET', KEYS[2], ARGV[9], 'EX', ARGV[5]) end
return {'queued', redis.call('XADD', requests, '*', 'd', ARGV[2])}
"""
)

APPEND = Script(
    _FINISH
    + _TELL
    + """
-- KEYS: requests, the news of each kind, then each entry's stream
-- ARGV: again, ttl, number of kinds, each kind's news: entries or '', requests; for each entry: id, entry;
--       for each claim to finish: its entry's number, group, claim
-- Returns for each entry: 0 written, 1 gone, 2 superseded
local ttl, kinds = ARGV[2], tonumber(ARGV[3])
local at = 4 + 2 * kinds
local outcomes, refused, failure = {}, 0, nil
for i = kinds + 2, #KEYS do
  local key, id, entry = KEYS[i], ARGV[at], ARGV[at + 1]
  local outcome = 0
  local reply = redis.pcall('XADD', key, 'NOMKSTREAM', id, 'd', entry)
  if not reply then
    outcome = 1
  elseif reply.err then
    -- What was written before it is written, and must be told.
    if not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply break end
    local there = ARGV[1] == '1' and redis.call('XRANGE', key, id, id)[1]
    if not (there and there[2][2] == entry) then outcome = 2 end
  end
  if outcome == 0 then redis.call('EXPIRE', key, ttl) else refused = refused + 1 end
  outcomes[#outcomes + 1] = outcome
  at = at + 2
end
for i = at, #ARGV, 3 do
  if outcomes[tonumber(ARGV[i])] == 0 then finish(KEYS[1], ARGV[i + 1], ARGV[i + 2]) end
end
if refused < #outcomes then
  for kind = 1, kinds do
    local entries, requests = ARGV[2 + 2 * kind], ARGV[3 + 2 * kind]
    if refused == 0 and not failure and entries ~= '' then
      tell(KEYS[1 + kind], 'd', entries, ttl)
    else
      tell(KEYS[1 + kind], 'l', requests, ttl)
    end
  end
end
return failure or outcomes
"""
)

PLAYBACK = Script(
    _TELL
    + """
-- KEYS: the news of played, then for each request: played, audio, codes, reference
-- ARGV: again, ttl, entry, news of all, requests, then for each request: id, first audio id to keep
local refused, failure = 0, nil
for i = 2, #KEYS, 4 do
  local at = 6 + (i - 2) / 2
  local reply = redis.pcall('XADD', KEYS[i], 'NOMKSTREAM', 'MAXLEN', 1, ARGV[at], 'd', ARGV[3])
  if reply and not reply.err then
    redis.call('XTRIM', KEYS[i + 1], 'MINID', ARGV[at + 1])
    for key = i, i + 3 do redis.call('EXPIRE', KEYS[key], ARGV[2]) end
  else
    refused = refused + 1
    if reply and not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply end
  end
end
if refused == 0 then
  tell(KEYS[1], 'd', ARGV[4], ARGV[2])
elseif 4 * refused < #KEYS - 1 then
  tell(KEYS[1], 'l', ARGV[5], ARGV[2])
end
return failure or 1
"""
)

RELEASE = Script(
    """
-- KEYS: requests, control, everything the request has
-- ARGV: again, claim id, request id, entries that control keeps
redis.call('XACK', KEYS[1], 'talkers', ARGV[2])
redis.call('XACK', KEYS[1], 'codecs', ARGV[2])
local unfinished = redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('UNLINK', unpack(KEYS, 3))
if unfinished == 1 then redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'd', ARGV[3]) end
return unfinished
"""
)

LAST = Script(
    """
-- KEYS: a stream. Returns the last ID it ever held, or nil
local pairs = redis.pcall('XINFO', 'STREAM', KEYS[1])
if pairs.err then return not string.find(pairs.err, 'no such key', 1, true) and pairs end
for i = 1, #pairs, 2 do
  if pairs[i] == 'last-generated-id' then return pairs[i + 1] end
end
"""
)

QUEUE = Script(
    _WAITING
    + """
-- KEYS: requests. ARGV: again, group. Returns length and the oldest's milliseconds
local length, oldest = waiting(KEYS[1], ARGV[2], math.max(redis.call('XLEN', KEYS[1]), 1))
return {length, oldest}
"""
)

HAS_LIVE_CONSUMER = Script(
    """
-- KEYS: requests. ARGV: again, group, milliseconds. Returns 1 if a consumer was active in that time
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[2])
for _, pairs in ipairs(consumers) do
  for i = 1, #pairs, 2 do
    if pairs[i] == 'idle' and pairs[i + 1] <= tonumber(ARGV[3]) then return 1 end
  end
end
return 0
"""
)

WANTED = Script(
    _FINISH
    + """
-- KEYS: requests, then the stream that each claim's result goes to. ARGV: again, group, then each claim's id
-- Returns 1 for each claim that somebody waits for; the others are finished.
local wanted = {}
for i = 2, #KEYS do
  wanted[i - 1] = redis.call('EXISTS', KEYS[i])
  if wanted[i - 1] == 0 then finish(KEYS[1], ARGV[2], ARGV[i + 1]) end
end
return wanted
"""
)

FINISH = Script(
    _FINISH
    + """
-- KEYS: requests. ARGV: again, group, claim id
finish(KEYS[1], ARGV[2], ARGV[3])
return 1
"""
)

TAKE_OVER = Script(
    """
-- KEYS: requests. ARGV: again, group, consumer, lease in ms, count, '1' to look for own ones, ids known to be held
-- Returns {id, request, deliveries} for each. XPENDING and XCLAIM rather than XAUTOCLAIM, which in Redis 6.2 does not
-- say which entries were deleted.
local requests, group, consumer, count = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local held, taken = {}, {}
for i = 7, #ARGV do held[ARGV[i]] = true end

local function take(found)
  if found.err then return end
  for _, pending in ipairs(found) do
    local id = pending[1]
    if #taken < count and not held[id] then
      held[id] = true
      local entry = redis.call('XCLAIM', requests, group, consumer, 0, id)[1]
      if entry then
        taken[#taken + 1] = {id, entry[2][2], pending[4] + 1}
      else
        redis.call('XACK', requests, group, id)
      end
    end
  end
end

-- Before 7.2 a read that waits in vain does not count as a sign of life; looking for own claims does, here behind all.
redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'STREAMS', requests, '18446744073709551615-0')
if ARGV[6] == '1' then take(redis.pcall('XPENDING', requests, group, '-', '+', 10000, consumer)) end
take(redis.pcall('XPENDING', requests, group, 'IDLE', ARGV[4], '-', '+', count + #ARGV))
return taken
"""
)

REFRESH = Script(
    _FINISH
    + """
-- KEYS: requests, then the stream that each claim's result goes to. ARGV: again, group, consumer, then each claim's id
-- Returns the ids that are not this consumer's any more. Asked first: XCLAIM alone would steal them back.
local mine, lost = {}, {}
for i = 2, #KEYS do
  local id = ARGV[i + 2]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1, ARGV[3])
  if pending.err or #pending == 0 then
    lost[#lost + 1] = id
  elseif redis.call('EXISTS', KEYS[i]) == 0 then
    finish(KEYS[1], ARGV[2], id)
    lost[#lost + 1] = id
  else
    mine[#mine + 1] = id
  end
end
if #mine > 0 then
  mine[#mine + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, unpack(mine))
end
return lost
"""
)

HAND_OVER = Script(
    """
-- KEYS: requests. ARGV: again, group, consumer, then each claim's id
-- The lease has run out a day ago, and the delivery does not count.
for i = 4, #ARGV do
  local id = ARGV[i]
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1, ARGV[3])
  local _, _, idle, deliveries = unpack(pending[1] or {})
  if idle and idle < 43200000 then
    redis.call('XCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, id, 'IDLE', 86400000, 'RETRYCOUNT', deliveries - 1, 'JUSTID')
  end
end
return 1
"""
)

JOIN = Script(
    """
-- KEYS: requests. ARGV: again, group. From the beginning, so that nothing queued is skipped.
local reply = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
if reply.err and not string.find(reply.err, 'BUSYGROUP', 1, true) then return reply end
return 1
"""
)

LEAVE = Script(
    """
-- KEYS: requests. ARGV: again, group, consumer. Leaving with claims would drop them from everybody's sight.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], '-', '+', 1, ARGV[3])
if pending.err or #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[2], ARGV[3])
return 1
"""
)
