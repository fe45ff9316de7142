-- KEYS: requests, the change feed of each kind, then for each entry: its stream, the owners of its request
-- ARGV: retry, ttl, number of kinds, for each kind: entries (or '') and request ids for its feed; for each entry: id,
--       entry, group ('' to not check the owner), epoch; for each claim to finish: number of its entry, group, claim id
-- Returns for each entry: 0 written, 1 gone, 2 superseded
local ttl, kinds = ARGV[2], tonumber(ARGV[3])
local at = 4 + 2 * kinds
local outcomes, refused, failure = {}, 0, nil
local superseded = {}
for i = kinds + 2, #KEYS, 2 do
  local key, owners, id, entry, group, epoch = KEYS[i], KEYS[i + 1], unpack(ARGV, at, at + 3)
  local outcome = 0
  if superseded[key] or (group ~= '' and redis.call('HGET', owners, group) ~= epoch) then
    outcome = redis.call('EXISTS', key) + 1
  else
    local reply = redis.pcall('XADD', key, 'NOMKSTREAM', id, 'd', entry)
    if not reply then
      outcome = 1
    elseif reply.err then
      -- Entries written before the failure still go into the change feed.
      if not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply break end
      local existing = ARGV[1] == '1' and redis.call('XRANGE', key, id, id)[1]
      if not (existing and existing[2][2] == entry) then outcome = 2 end
    end
  end
  if outcome == 0 then
    redis.call('EXPIRE', key, ttl)
    redis.call('EXPIRE', owners, ttl)
  else
    refused = refused + 1
    superseded[key] = true
  end
  outcomes[#outcomes + 1] = outcome
  at = at + 4
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
