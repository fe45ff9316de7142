-- KEYS and ARGV: as in cancel
return cancel()
