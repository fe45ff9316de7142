-- KEYS: capacity, requests, leases
-- ARGV: retry, group, consumer, free, rate, the consumer that it is a standby of or '', lease in ms or ''
-- Renews the consumer's lease.
-- Returns the codecs' number of reports and free requests: fewer than 1 unless one of them has room for a whole one; and 1
-- if the consumer is to stand by
renew(KEYS[2], KEYS[3], ARGV[3])
local now, name, report = clock(), ARGV[2] .. ':' .. ARGV[3], ' ' .. ARGV[4] .. ' ' .. ARGV[5]
local stands_by = ARGV[6] ~= '' and holds_lease(KEYS[3], ARGV[7], ARGV[1], ARGV[6]) and 1 or 0
local function answer(sums)
  local free, _, reports, whole = capacity(sums, 'codec')
  return {reports, tostring(whole > 0 and whole or math.min(free, 0.9)), stands_by}
end

-- While the codecs are full, talkers ask often whether one has room. After a fail-over the clock may be behind.
local due, codecs, last = unpack(redis.call('HMGET', KEYS[1], 'due', 'sum:codec', name))
local at, before = string.match(last or '', '^(%d+)(.*)$')
if before == report and at + REPEAT_MS > now and now >= tonumber(at) and now <= tonumber(due or 0) then
  return answer({codec = parsed(codecs)})
end
-- Redis refuses no write after the first one of a script, even if its memory is full.
redis.call('EXPIRE', KEYS[1], QUEUE_TTL_SECONDS)
local sums, known = capacity_sums(KEYS[1], name)
local sum = sums[string.match(name, '^(%a+):')]
report = now .. report
if known then add(sum, known, -1) end
add(sum, report, 1)
sums.due = math.min(sums.due, now + CAPACITY_SECONDS * 1000)
store_sums(KEYS[1], sums, name, report)
if not known then redis.call('EXPIRE', KEYS[1], QUEUE_TTL_SECONDS) end
return answer(sums)
