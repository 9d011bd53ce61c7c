-- Ends a lease without a value, if that is the caller's. Returns whether it was.
-- KEYS: lease. ARGV: token, channel, notice.
local l = redis.pcall('GET', KEYS[1])
if type(l) == 'table' and not string.find(l.err, 'WRONGTYPE', 1, true) then return l end
if l ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[2], ARGV[3])
return 1
