-- The epoch of a table, and the offered one where there is none, or something else.
-- KEYS: epoch. ARGV: an epoch, milliseconds.
local e = redis.pcall('GET', KEYS[1])
if type(e) == 'table' and not string.find(e.err, 'WRONGTYPE', 1, true) then return e end
if type(e) == 'string' and #e == #ARGV[1] then
  -- It is kept for so long after it was last asked for. It can be read where nothing can be written.
  redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  return e
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
