-- KEYS: requests, writers, the streams of the direct entries; for each checked entry: its stream, the owners of its request
-- ARGV: retry, ttl, writer, its last batch ('': none that counts), this batch ('': is not recorded), number of direct
--       entries, which are grouped by their readers; for each group: readers, the inbox entry that has its entries, then
--       those that are too large for it; for each checked entry: id, entry, kind, group and token of its writer, id of the
--       writer's previous entry; for each claim to finish: number of its checked entry, group, claim id
-- Returns 1 if this batch counts as the writer's last one, else 0; the readers of each checked entry that was written
-- now, else 0; then for each entry: 0 written, now or earlier; 1 gone; 2 superseded; 3 to be checked; or the stream's last
-- id, if the stream lacks the writer's previous entry.
-- A writer's direct entries follow entries that were checked, and no request has changed its owner since, nor have their
-- streams got another reader, as long as the writer's last batch is still recorded. A repeated script is not recorded: the
-- first one may still arrive.
local ttl, writer, last_batch, batch, direct = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local recorded = batch ~= '' and ARGV[1] == '0'
  and (last_batch == '' or redis.call('HGET', KEYS[2], writer) == last_batch)
local readers, stopped, letters, failure = {}, {}, {}, nil
local outcomes, prefix = {recorded and 1 or 0, readers}, name_start(KEYS[1])

-- Returns 0 if an entry was written, else the outcome.
local function add(key, id, entry)
  local reply = redis.pcall('XADD', key, 'NOMKSTREAM', id, 'd', entry)
  if not reply then return 1 end
  if not reply.err then return 0 end
  if not string.find(reply.err, 'equal or smaller', 1, true) then failure = reply end
  return 2
end

local function check(key, owners, id, entry, kind, group, token, after)
  local last = last_id(key)
  if not last then return 1 end
  if type(last) == 'table' then
    failure = last
    return 2
  end
  if not is_newest(KEYS[2], owners, group, token, kind, key) then return 2 end
  if last == after then
    local found = redis.call('HGET', owners, kind .. ':readers')
    local outcome = add(key, id, entry)
    if outcome == 0 then
      address(letter_to(letters, found), prefix, key, id, entry)
      readers[#readers] = found or ''
      redis.call('HSET', owners, kind .. ':writer', writer)
      redis.call('EXPIRE', key, ttl)
      redis.call('EXPIRE', owners, ttl)
    end
    return outcome
  end
  if precedes(last, after) then return last end
  return precedes(last, id) and 2 or 0
end

-- `outcomes` has two items before the entries, as KEYS has.
local at, key = 7, 3
while key < 3 + direct and not failure do
  local first, letter, entries, place, complete = key, letter_to(letters, ARGV[at]), ARGV[at + 1], 1, true
  at = at + 2
  while place <= #entries and not failure do
    local high, low, id_size, entry_high, entry_low = string.byte(entries, place, place + 4)
    local id_at = place + 5 + 256 * high + low
    local entry_at = id_at + id_size
    place = entry_at + 256 * entry_high + entry_low
    local entry = string.sub(entries, entry_at, place - 1)
    if entry == '' then
      entry, at = ARGV[at], at + 1
    end
    local outcome = recorded and add(KEYS[key], string.sub(entries, id_at, entry_at - 1), entry) or 3
    outcomes[key] = outcome == 2 and 3 or outcome
    key, complete = key + 1, complete and outcome == 0
  end
  if letter and complete then
    letter[#letter + 1] = entries
  else
    for i = first, key - 1 do
      if outcomes[i] == 0 then address(letter, prefix, KEYS[i], '0-0', '') end
    end
  end
end
local checked = #outcomes
for i = key, #KEYS, 2 do
  -- Entries written before a failure still go to the inboxes.
  if failure then break end
  readers[#readers + 1] = 0
  local outcome = stopped[KEYS[i]] or check(KEYS[i], KEYS[i + 1], unpack(ARGV, at, at + 5))
  if outcome ~= 0 then stopped[KEYS[i]] = outcome end
  outcomes[#outcomes + 1] = outcome
  at = at + 6
end
if not failure then
  for i = at, #ARGV, 3 do
    if outcomes[checked + ARGV[i]] == 0 then finish(KEYS[1], ARGV[i + 1], ARGV[i + 2]) end
  end
  if recorded then
    -- It is the first write if no entry was written, and refused if the memory is full: then the next batch is checked.
    local reply = redis.pcall('HSET', KEYS[2], writer, batch)
    -- An entry of this batch may have deleted the key: it has restored a lost claim.
    if last_batch == '' or reply == 1 then redis.call('EXPIRE', KEYS[2], QUEUE_TTL_SECONDS) end
  end
end
deliver(letters)
return failure or outcomes
