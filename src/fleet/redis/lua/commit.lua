-- Stores the value and ends the lease, if that is the caller's still. {1}: done. {2, value, its
-- pttl}: it is not, and this is there. {3}: it is not, and there is no value.
-- KEYS: value, lease. ARGV: token, value, milliseconds, channel, notice.
local l = redis.pcall('GET', KEYS[2])
if type(l) == 'table' and not string.find(l.err, 'WRONGTYPE', 1, true) then return l end
if l ~= ARGV[1] then
  local v = redis.pcall('GET', KEYS[1])
  if type(v) == 'string' and v ~= '' then return {2, v, redis.call('PTTL', KEYS[1])} end
  return {3}
end
-- First of all what may be refused: nothing has happened, then.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
-- Whoever may not publish may store all the same.
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
return {1}
