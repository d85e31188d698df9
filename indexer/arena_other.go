//go:build !linux

package indexer

func adviseHuge([]chunk) {}
