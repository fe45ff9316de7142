-- Removes a request from the queue for both groups: the codecs have finished it, or no client waits for it.
local function drop(requests, id)
  redis.call('XACK', requests, 'talkers', id)
  redis.call('XACK', requests, 'codecs', id)
  redis.call('XDEL', requests, id)
end

local function finish(requests, group, id)
  if group == 'codecs' then drop(requests, id) else redis.call('XACK', requests, group, id) end
end
