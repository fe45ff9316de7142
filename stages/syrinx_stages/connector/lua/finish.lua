-- A request that the codecs have finished leaves the queue.
local function finish(requests, group, id)
  redis.call('XACK', requests, group, id)
  if group == 'codecs' then
    redis.call('XACK', requests, 'talkers', id)
    redis.call('XDEL', requests, id)
  end
end
