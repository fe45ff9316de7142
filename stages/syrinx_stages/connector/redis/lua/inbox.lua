-- The field '<kind>:readers' of the hash `owners` of a request has the inboxes of those that read the stream of a kind,
-- separated by spaces: usually one, and after a takeover also that of the former owner while it lives. An inbox is not
-- among the KEYS of the scripts that write to it, but has their hash tag.
-- The field '<kind>:writer' has the process that last wrote a checked entry and so knows the readers. A further reader
-- deletes that process's record, so that it writes no direct entry before it knows it.

-- Adds an inbox to the readers of a stream, in place of those that have expired. Does nothing for a missing request.
local function add_reader(writers, owners, kind, inbox)
  local known, writer = unpack(redis.call('HMGET', owners, kind .. ':readers', kind .. ':writer'))
  if known and string.find(known, inbox, 1, true) or redis.call('EXISTS', owners) == 0 then return end
  local readers = {inbox}
  for other in string.gmatch(known or '', '%S+') do
    if redis.call('EXISTS', other) == 1 then readers[#readers + 1] = other end
  end
  redis.call('HSET', owners, kind .. ':readers', table.concat(readers, ' '))
  if writer then redis.call('HDEL', writers, writer) end
end

-- Returns the parts of the inbox entry for `readers`; nil if they are '' or false: the stream has none.
-- It names each written entry and has its content: see `inbox.pack`.
local function letter_to(letters, readers)
  if not readers or readers == '' then return end
  local letter = letters[readers]
  if not letter then
    letter = {}
    letters[readers] = letter
  end
  return letter
end

-- Adds a written entry to `letter`; without its content if that is large: the stream is to be read.
local function address(letter, prefix, stream, id, entry)
  if not letter then return end
  if #entry > MAX_INLINE_BYTES then entry = '' end
  local name = string.sub(stream, prefix)
  local sizes = {math.floor(#name / 256), #name % 256, #id, math.floor(#entry / 256), #entry % 256}
  letter[#letter + 1] = string.char(unpack(sizes)) .. name .. id .. entry
end

-- Adds what was collected to the inboxes. While a slot moves to another node of a Cluster, an inbox may be missing here:
-- its reader loses its connection then, and reads the streams.
local function deliver(letters)
  local oldest
  for readers, letter in pairs(letters) do
    oldest = oldest or redis.call('TIME')[1] - INBOX_RETENTION_SECONDS .. '000'
    for inbox in string.gmatch(readers, '%S+') do
      redis.pcall('XADD', inbox, 'NOMKSTREAM', 'MINID', '~', oldest, '*', 'd', table.concat(letter))
    end
  end
end

-- Returns where the name of a stream starts in its key, given the key of the requests.
local function name_start(requests)
  return #requests - #'requests' + 1
end
