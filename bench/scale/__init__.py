"""Benchmark of what a pipeline costs as it grows: Redis's processor time, takeover scans, inboxes, scrapes."""
