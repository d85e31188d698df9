package main

func compare(traces []string, rounds int, sequences, lookups uint64, dir string) error { return nil }
