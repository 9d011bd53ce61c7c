-- Begins an epoch.
-- KEYS: epoch. ARGV: the epoch, milliseconds, channel, notice.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.pcall('PUBLISH', ARGV[3], ARGV[4])
return 1
