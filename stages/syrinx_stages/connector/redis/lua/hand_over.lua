-- KEYS: requests, leases. ARGV: retry, group, consumer, then each claim's id. Does not count the deliveries.
touch_queue(KEYS[1])
for i = 4, #ARGV do give_away(KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[i], 1) end
return 1
