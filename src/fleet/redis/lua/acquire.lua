-- The value of a key; or, where there is none, the lease. {1, value, its pttl}: a value. {2}: the
-- lease is the caller's. {3, its pttl, its token}: it is somebody else's; of a foreign type, without
-- a token.
-- KEYS: value, lease. ARGV: token, milliseconds, the beginning of a value that counts as none.
local v = redis.pcall('GET', KEYS[1])
-- A foreign type is no value; the commit will replace it. Any other error is the caller's.
if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
if type(v) == 'string' and v ~= '' and (ARGV[3] == '' or string.sub(v, 1, #ARGV[3]) ~= ARGV[3]) then
  return {1, v, redis.call('PTTL', KEYS[1])}
end
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then return {2} end
local l = redis.pcall('GET', KEYS[2])
if l == ARGV[1] then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return {2}
end
local p = redis.call('PTTL', KEYS[2])
-- A lease without an end would keep everybody waiting for ever.
if p == -1 then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  p = tonumber(ARGV[2])
end
if type(l) == 'table' then l = false end
return {3, p, l}
