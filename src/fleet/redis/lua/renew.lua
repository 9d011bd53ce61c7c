-- Moves the end of a lease, if that is the caller's. Returns whether it is.
-- KEYS: lease. ARGV: token, milliseconds.
local l = redis.pcall('GET', KEYS[1])
if type(l) == 'table' and not string.find(l.err, 'WRONGTYPE', 1, true) then return l end
if l ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
