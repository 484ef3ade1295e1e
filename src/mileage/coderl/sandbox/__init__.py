"""Running builds: processes with limits, isolation, snapshots, caches."""
