-- KEYS: a stream. Returns the last ID that was ever written to it, or nil
return last_id(KEYS[1])
