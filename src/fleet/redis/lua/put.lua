-- Stores a value, and removes the lease, whoever holds it.
-- KEYS: value, lease. ARGV: value, milliseconds, channel, notice.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('DEL', KEYS[2])
redis.pcall('PUBLISH', ARGV[3], ARGV[4])
return 1
