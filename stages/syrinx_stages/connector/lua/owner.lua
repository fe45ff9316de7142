-- The hash `owners` of a request holds the token of each group's newest claim and the last position of each stream.
-- A token is '<epoch>:<nonce>:<codes>:<audio>:<previous>': the positions of the streams at the claim, and the nonce of
-- the claim before it.
local function precedes(a, b)
  local a_frames, a_sequence = string.match(a, '(%d+)-(%d+)')
  local b_frames, b_sequence = string.match(b, '(%d+)-(%d+)')
  if a_frames ~= b_frames then return tonumber(a_frames) < tonumber(b_frames) end
  return tonumber(a_sequence) < tonumber(b_sequence)
end

-- Before the first claim, the token is '0:<nonce>' with a nonce of the submission.
local function nonce(token)
  return string.match(token, '^%d+:(%x+)')
end

-- Returns whether a request has an owner other than that of the claim with a nonce.
local function is_owned(token, claim)
  return string.match(token, '^%d+') ~= '0' and nonce(token) ~= claim
end

-- Returns whether `token` is of the newest claim in its group. A fail-over may have lost a claim: its token is stored
-- again if the stored token is of the claim before it, unless that one's owner has extended the stream since.
local function is_newest(owners, group, token, kind)
  local known, at = unpack(redis.call('HMGET', owners, group, kind))
  if known == token then return true end
  local codes, audio, previous = string.match(token, '^%d+:%x+:(%d+-%d+):(%d+-%d+):(%x+)$')
  if not known or nonce(known) ~= previous then return false end
  if precedes(kind == 'codes' and codes or audio, at) then return false end
  redis.call('HSET', owners, group, token)
  return true
end
