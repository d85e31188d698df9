package indexer

// chunksPerArena is how many chunks to take at once: one while the index is small (8 MiB), sixteen (32 MiB) later, so that
// most of an arena can lie on huge pages.
func chunksPerArena(have int) int {
	if have < 4 {
		return 1
	}
	return 16
}

func newArena(n int) []chunk {
	a := make([]chunk, n)
	if n > 1 {
		adviseHuge(a)
	}
	return a
}
