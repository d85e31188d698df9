package kvevent

import "testing"

func TestTierOf(t *testing.T) {
	for name, want := range map[string]Tier{
		"": GPU, "GPU": GPU, "gpu": GPU, "CPU": CPU, "cpu": CPU, "CPU_PINNED": CPU, "CPU_TIER1": CPU, "LocalCPUBackend": CPU, "HostPinned": CPU,
		"STORAGE": Disk, "Disk": Disk, "LocalDiskBackend": Disk, "FS": Disk, "fs": Disk, "nvme": Disk,
		"OBJ": Remote, "EXTERNAL": Remote, "RemoteBackend": Remote, "something new": Remote,
	} {
		if got, known := KnownTier(name); got != want || known != (name != "something new") || TierOf(name) != want {
			t.Errorf("%q: %s, known %t, want %s", name, got, known, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() { TierOf("GPU"); TierOf("CPU") }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// maybe_convert_block_hash of vLLM 0.32.0: int.from_bytes(hash, "big") & (2^64-1). Digest and integer from its golden hashes.
func TestDigest(t *testing.T) {
	digest := []byte("\x53\xb2\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x7b\x0b\xf7\xbf\x7f\xd0\x16\x82")
	if got := FoldDigest(digest); got != 8866452693264111234 {
		t.Errorf("got %d, want 8866452693264111234", got)
	}
	if FoldDigest([]byte{1, 2}) != 0x102 || FoldDigest(nil) != 0 {
		t.Error("short digests")
	}
}

func TestInGroup(t *testing.T) {
	seen := map[uint64]int{}
	for g := range 64 {
		h := InGroup(42, g)
		if old, ok := seen[h]; ok {
			t.Errorf("groups %d and %d fold to one engine hash", old, g)
		}
		seen[h] = g
	}
	if InGroup(42, 0) != 42 || InGroup(42, -1) != 42 {
		t.Error("no group changes the engine hash")
	}
}
