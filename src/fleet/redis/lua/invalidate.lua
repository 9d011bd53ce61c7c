-- Removes a value, and the lease, whoever holds it: what is being loaded cannot be committed.
-- KEYS: value, lease. ARGV: channel, notice.
redis.call('DEL', KEYS[1], KEYS[2])
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return 1
