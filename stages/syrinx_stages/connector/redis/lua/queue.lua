-- KEYS: requests, waiting, capacity. ARGV: retry
-- Returns the number of requests that no talker has claimed, the age of the oldest and the expected wait of the next one,
-- both in ms
local length, oldest = waiting_requests(KEYS[1], KEYS[2], last_delivered(KEYS[1]).talker)
return {length, oldest, expected_wait(KEYS[1], capacity_sums(KEYS[3]), length)}
