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
