local function touch_queue(requests)
  redis.call('EXPIRE', requests, QUEUE_TTL_SECONDS)
end
