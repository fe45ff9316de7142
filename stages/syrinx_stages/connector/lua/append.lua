-- KEYS: requests, the change feed of each kind, then for each entry: its stream, the owners of its request
-- ARGV: retry, ttl, number of kinds, for each kind: entries (or '') and request ids for its feed; for each entry: id,
--       entry, kind, group and token of its writer, id of the writer's previous entry; for each claim to finish: number
--       of its entry, group, claim id
-- Returns for each entry: 0 written, now or earlier; 1 gone; 2 superseded; or the stream's last id, if the stream lacks
-- the writer's previous entry.
local ttl, kinds = ARGV[2], tonumber(ARGV[3])
local at = 4 + 2 * kinds
local outcomes, added, failure = {}, 0, nil
local stopped = {}
for i = kinds + 2, #KEYS, 2 do
  local key, owners, id, entry, kind, group, token, after = KEYS[i], KEYS[i + 1], unpack(ARGV, at, at + 5)
  local outcome = stopped[key] or 0
  if outcome == 0 then
    local known, last = unpack(redis.call('HMGET', owners, group, kind))
    if known ~= token and not is_newest(owners, group, token, kind) then
      outcome = redis.call('EXISTS', key) + 1
    elseif last == after then
      local reply = redis.pcall('XADD', key, 'NOMKSTREAM', id, 'd', entry)
      if not reply then
        outcome = 1
      elseif reply.err then
        -- Entries written before the failure still go into the change feed.
        if not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply break end
        outcome = 2
      else
        redis.call('HSET', owners, kind, id)
        redis.call('EXPIRE', key, ttl)
        redis.call('EXPIRE', owners, ttl)
        added = added + 1
      end
    elseif precedes(last, after) then
      outcome = last
    elseif precedes(last, id) then
      outcome = 2
    end
    if outcome ~= 0 then stopped[key] = outcome end
  end
  outcomes[#outcomes + 1] = outcome
  at = at + 6
end
for i = at, #ARGV, 3 do
  if outcomes[tonumber(ARGV[i])] == 0 then finish(KEYS[1], ARGV[i + 1], ARGV[i + 2]) end
end
if added > 0 then
  for kind = 1, kinds do
    local entries, requests = ARGV[2 + 2 * kind], ARGV[3 + 2 * kind]
    if added == #outcomes and not failure and entries ~= '' then
      notify(KEYS[1 + kind], 'd', entries, ttl)
    else
      notify(KEYS[1 + kind], 'l', requests, ttl)
    end
  end
end
return failure or outcomes
