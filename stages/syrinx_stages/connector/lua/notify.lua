-- Adds to a change feed: field `d` with written entries, or `l` with the requests whose streams to read.
local function notify(feed, field, content, ttl)
  local oldest = redis.call('TIME')[1] - FEED_RETENTION_SECONDS .. '000'
  redis.call('XADD', feed, 'MINID', '~', oldest, '*', field, content)
  redis.call('EXPIRE', feed, ttl)
end
