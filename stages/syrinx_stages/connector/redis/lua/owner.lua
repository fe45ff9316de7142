-- The hash `owners` of a request holds the token of each group's newest claim. A token is
-- '<epoch>:<nonce>:<codes>:<audio>:<previous>': the positions of the streams at the claim, and the nonce of the claim
-- before it.
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

-- Makes a token the newest one. If the request had an owner, all writers must have their next entries checked.
local function set_token(writers, owners, group, token, known)
  if string.match(known, '^%d+') ~= '0' then redis.call('UNLINK', writers) end
  redis.call('HSET', owners, group, token)
end

-- Returns the last ID of a stream, nil if it does not exist. A key of another type has none, which its writer finds out.
local function end_of(stream)
  local last = last_id(stream)
  return type(last) == 'table' and '0-0' or last
end

-- Returns whether `token` is of the newest claim in its group, to write a stream of a kind. A fail-over may have lost a
-- claim: its token is stored again if the stored token is of the claim before it, unless that one's owner has extended
-- the stream since.
local function is_newest(writers, owners, group, token, kind, stream)
  local known = redis.call('HGET', owners, group)
  if known == token then return true end
  local codes, audio, previous = string.match(token, '^%d+:%x+:(%d+-%d+):(%d+-%d+):(%x+)$')
  if not known or nonce(known) ~= previous then return false end
  if precedes(kind == 'codes' and codes or audio, end_of(stream)) then return false end
  set_token(writers, owners, group, token, known)
  return true
end
