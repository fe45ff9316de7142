"""Operations that must be atomic in Redis, as Lua scripts. They use no command newer than Redis 6.2.

All keys are passed in KEYS and carry the shard's hash tag. ARGV[1] is "1" if an earlier attempt of the same call may
have been executed: its connection was lost before the reply arrived. The only field of an entry is `d`.
"""

from __future__ import annotations

import hashlib


class Script:
    """A script and its SHA-1 digest, under which Redis caches it."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


FEED_RETENTION_SECONDS = 5
"""How long change feeds keep entries. A reader that was away for longer reads the request streams themselves."""
QUEUE_TTL_SECONDS = 2 * 3600
"""Time to live of the request stream after a submission or a sign of life of any consumer. Longer than any request may
wait, so it only removes the stream of a generation that has neither requests nor replicas."""

_NOTIFY = f"""
-- Adds to a change feed: field `d` with written entries, or `l` with the requests whose streams to read.
local function notify(feed, field, content, ttl)
  local oldest = redis.call('TIME')[1] - {FEED_RETENTION_SECONDS} .. '000'
  redis.call('XADD', feed, 'MINID', '~', oldest, '*', field, content)
  redis.call('EXPIRE', feed, ttl)
end
"""

_FINISH = """
-- A request that the codecs have finished leaves the queue.
local function finish(requests, group, id)
  redis.call('XACK', requests, group, id)
  if group == 'codecs' then
    redis.call('XACK', requests, 'talkers', id)
    redis.call('XDEL', requests, id)
  end
end
"""

_TOUCH_QUEUE = f"""
local function touch_queue(requests)
  redis.call('EXPIRE', requests, {QUEUE_TTL_SECONDS})
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

-- Returns the number of requests, up to `limit`, that the group has not claimed, and the age of the oldest in ms.
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
    + _TOUCH_QUEUE
    + """
-- KEYS: requests, reference, the request's streams
-- ARGV: retry, request, id and content of a stream's first entry, ttl, max_queue, max_queue_ms, has reference,
--       reference
local requests = KEYS[1]
if ARGV[1] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', requests, '+', '-', 'COUNT', 1000)) do
    if entry[2][2] == ARGV[2] then return {'queued', entry[1]} end
  end
end
local max_queue = tonumber(ARGV[6])
-- Unclaimed requests are counted only if the stream is long enough.
local full = redis.call('XLEN', requests) >= max_queue
local length, oldest = waiting(requests, 'talkers', full and math.max(max_queue, 1) or 1)
if (full and length >= max_queue) or oldest > tonumber(ARGV[7]) then return {'full', length, oldest} end
if redis.call('EXISTS', KEYS[3]) == 1 then return {'in use'} end
for _, group in ipairs({'talkers', 'codecs'}) do
  if not last_delivered(requests, group) then redis.call('XGROUP', 'CREATE', requests, group, '0', 'MKSTREAM') end
end
for i = 3, #KEYS do
  redis.call('XADD', KEYS[i], ARGV[3], 'd', ARGV[4])
  redis.call('EXPIRE', KEYS[i], ARGV[5])
end
if ARGV[8] == '1' then redis.call('SET', KEYS[2], ARGV[9], 'EX', ARGV[5]) end
local id = redis.call('XADD', requests, '*', 'd', ARGV[2])
touch_queue(requests)
return {'queued', id}
"""
)

APPEND = Script(
    _FINISH
    + _NOTIFY
    + """
-- KEYS: requests, the change feed of each kind, then the stream of each entry
-- ARGV: retry, ttl, number of kinds, for each kind: entries (or '') and request ids for its feed; for each entry: id,
--       entry; for each claim to finish: number of its entry, group, claim id
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
    -- Entries written before the failure still go into the change feed.
    if not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply break end
    local existing = ARGV[1] == '1' and redis.call('XRANGE', key, id, id)[1]
    if not (existing and existing[2][2] == entry) then outcome = 2 end
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
      notify(KEYS[1 + kind], 'd', entries, ttl)
    else
      notify(KEYS[1 + kind], 'l', requests, ttl)
    end
  end
end
return failure or outcomes
"""
)

REPORT_PLAYBACK = Script(
    _NOTIFY
    + """
-- KEYS: the playback change feed, then for each request: playback, audio, codes, reference
-- ARGV: retry, ttl, entry, feed content with all entries, feed content with the request ids, then for each request:
--       id, first audio id to keep
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
  notify(KEYS[1], 'd', ARGV[4], ARGV[2])
elseif 4 * refused < #KEYS - 1 then
  notify(KEYS[1], 'l', ARGV[5], ARGV[2])
end
return failure or 1
"""
)

RELEASE = Script(
    """
-- KEYS: requests, control, all keys of the request
-- ARGV: retry, claim id, request id, maximum length and ttl of control
redis.call('XACK', KEYS[1], 'talkers', ARGV[2])
redis.call('XACK', KEYS[1], 'codecs', ARGV[2])
local unfinished = redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('UNLINK', unpack(KEYS, 3))
if unfinished == 1 then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'd', ARGV[3])
  redis.call('EXPIRE', KEYS[2], ARGV[5])
end
return unfinished
"""
)

LAST_POSITION = Script(
    """
-- KEYS: a stream. Returns the last ID that was ever written to it, or nil
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
-- KEYS: requests. ARGV: retry, group. Returns the queue's length and the age of the oldest request in ms
local length, oldest = waiting(KEYS[1], ARGV[2], math.max(redis.call('XLEN', KEYS[1]), 1))
return {length, oldest}
"""
)

HAS_LIVE_CONSUMER = Script(
    """
-- KEYS: requests. ARGV: retry, group, milliseconds. Returns 1 if a consumer was active in that time
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[2])
for _, pairs in ipairs(consumers) do
  for i = 1, #pairs, 2 do
    if pairs[i] == 'idle' and pairs[i + 1] <= tonumber(ARGV[3]) then return 1 end
  end
end
return 0
"""
)

FINISH_UNWANTED = Script(
    _FINISH
    + """
-- KEYS: requests, then the output stream of each claim. ARGV: retry, group, then each claim's id
-- Returns 1 for each claim that a client waits for, else 0; the latter claims are finished.
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
-- KEYS: requests. ARGV: retry, group, claim id
finish(KEYS[1], ARGV[2], ARGV[3])
return 1
"""
)

TAKE_OVER = Script(
    _TOUCH_QUEUE
    + """
-- KEYS: requests. ARGV: retry, group, consumer, lease in ms, count, '1' to include the consumer's own claims, then the
--       ids of claims that it holds
-- Returns {id, request, deliveries} for each. Uses XPENDING and XCLAIM because XAUTOCLAIM in Redis 6.2 does not report
-- deleted entries.
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

-- Before Redis 7.2 a blocking read that times out does not update the consumer's idle time. A read of its own claims,
-- here after the last possible ID, does.
redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'STREAMS', requests, '18446744073709551615-0')
touch_queue(requests)
if ARGV[6] == '1' then take(redis.pcall('XPENDING', requests, group, '-', '+', 10000, consumer)) end
take(redis.pcall('XPENDING', requests, group, 'IDLE', ARGV[4], '-', '+', count + #ARGV))
return taken
"""
)

REFRESH = Script(
    _FINISH
    + _TOUCH_QUEUE
    + """
-- KEYS: requests, then the output stream of each claim. ARGV: retry, group, consumer, then each claim's id
-- Returns the ids of claims that the consumer has lost. The owner is checked first, as XCLAIM would take them back.
touch_queue(KEYS[1])
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
-- KEYS: requests. ARGV: retry, group, consumer, then each claim's id
-- Sets the idle time to a day, so that the lease has expired, and does not count the delivery.
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
    _TOUCH_QUEUE
    + """
-- KEYS: requests. ARGV: retry, group. The group starts at the first entry, so that no queued request is skipped.
local reply = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
if reply.err and not string.find(reply.err, 'BUSYGROUP', 1, true) then return reply end
touch_queue(KEYS[1])
return 1
"""
)

LEAVE = Script(
    """
-- KEYS: requests. ARGV: retry, group, consumer. Deleting a consumer deletes its claims, so one with claims stays.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[2], '-', '+', 1, ARGV[3])
if pending.err or #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[2], ARGV[3])
return 1
"""
)
