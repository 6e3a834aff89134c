"""Benchmarks: this server beside its peers, as ratios of pairs measured in turn."""
