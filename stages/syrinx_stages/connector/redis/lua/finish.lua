-- Removes a request from the queue for both groups: the codecs have finished it, or no client waits for it.
local function drop(requests, id)
  redis.call('XACK', requests, 'talker', id)
  redis.call('XACK', requests, 'codec', id)
  redis.call('XDEL', requests, id)
end

local function finish(requests, group, id)
  if group == 'codec' then drop(requests, id) else redis.call('XACK', requests, group, id) end
end
