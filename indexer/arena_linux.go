package indexer

import (
	"syscall"
	"unsafe"
)

// adviseHuge asks the kernel for 2 MiB pages where an arena covers them whole: a lookup's few random reads then miss the cache
// but not the TLB as well. It is only advice; without transparent huge pages nothing changes.
func adviseHuge(a []chunk) {
	b := chunkMemory(a)
	const huge = 2 << 20
	skip := -uintptr(unsafe.Pointer(&b[0])) & (huge - 1)
	end := (uintptr(len(b)) - skip) &^ (huge - 1)
	_ = syscall.Madvise(b[skip:skip+end], syscall.MADV_HUGEPAGE)
}

// release returns a chunk's pages to the kernel.
func release(c *chunk) { _ = syscall.Madvise(chunkMemory(unsafe.Slice(c, 1)), syscall.MADV_DONTNEED) }

func chunkMemory(a []chunk) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&a[0])), len(a)*chunkBytes)
}
