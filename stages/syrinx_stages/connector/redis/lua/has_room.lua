-- Returns whether Redis has room for `bytes` more besides what the unfinished requests and this one may grow to, and
-- else the limit in bytes. True if there is no limit, or if the user may not run INFO.
local function has_room(requests, bytes)
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return true end
  local function field(name) return tonumber(string.match(info, '\n' .. name .. ':(%d+)')) or 0 end
  local limit, used = field('maxmemory'), field('used_memory') - field('mem_not_counted_for_evict')
  local reserved = (redis.call('XLEN', requests) + 1) * STREAM_BYTES
  return limit == 0 or used + bytes + reserved <= limit, limit
end
