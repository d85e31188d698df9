package block

import (
	"slices"
	"testing"
)

var pads = [4]uint64{23533869762612420, 1115227388442326932, 406705440234023321, 2100304651902599146}

// ids returns a prompt as SGLang sends it: the slow way with which Locals64 is compared.
func ids(tokens []uint32, runs []Run) (out []uint64) {
	for i, t := range tokens {
		id := uint64(t)
		for _, r := range runs {
			if i >= r.Offset && i < r.Offset+r.Length {
				id = r.Pads[(i-r.Offset)%4]
			}
		}
		out = append(out, id)
	}
	return out
}

// TestLocals64AreBlocksOfIDs: a request's blocks equal those of an event with the same ids, at every page size, with and without
// salt, in pairs or not.
func TestLocals64AreBlocksOfIDs(t *testing.T) {
	tokens := make([]uint32, 300)
	for i := range tokens {
		tokens[i] = uint32(i * 7919 % 150000)
	}
	low := [4]uint64{163254319, 163254319, 163254319, 163254319}
	runs := []Run{{3, 21, pads}, {24, 5, low}, {90, 133, pads}}
	sent := ids(tokens, runs)
	for _, size := range []int{1, 2, 16, 64, 100} {
		for _, root := range []Root{{}, fixed.Root("", "tenant-a")} {
			for _, width := range []int{size, size + 1} {
				var want []uint64
				for at := 0; at+width <= len(sent); at += size {
					own := root.Rest
					if at == 0 {
						own = root.First
					}
					want = append(want, fixed.Local64(nil, sent[at:at+width], own))
				}
				if got := fixed.Locals64(nil, tokens, size, runs, root, width > size); !slices.Equal(got, want) {
					t.Errorf("page size %d, width %d, root %d: not the blocks of the ids; got %v, want %v", size, width, root, got, want)
				}
			}
		}
	}
}

// TestLocal64: text has the same hash for every engine; an image, its place and its pads' order change it.
func TestLocal64(t *testing.T) {
	tokens := make([]uint32, 64)
	for _, root := range []Root{{}, fixed.Root("", "tenant-a")} {
		if !slices.Equal(fixed.Locals64(nil, tokens, 16, nil, root, false), fixed.Locals(nil, tokens, Form{Size: 16}, nil, root)) {
			t.Error("text differs from the rule of the other engines")
		}
	}
	plain := fixed.Locals64(nil, tokens, 16, nil, Root{}, false)
	one := fixed.Locals64(nil, tokens, 16, []Run{{17, 4, pads}}, Root{}, false)
	two := fixed.Locals64(nil, tokens, 16, []Run{{18, 4, pads}}, Root{}, false)
	for i, changed := range []bool{false, true, false, false} {
		if (plain[i] != one[i]) != changed || (one[i] != two[i]) != changed {
			t.Errorf("block %d: got hashes %x, %x, %x, want them changed by the image: %v", i, plain[i], one[i], two[i], changed)
		}
	}
	if fixed.Local64(nil, []uint64{5, 1 << 40}, 0) == fixed.Local64(nil, []uint64{5, 0, 0, 1 << 8}, 0) {
		t.Error("two 64-bit ids have the hash of four 32-bit ones")
	}
}

func TestLocals64AllocateNothing(t *testing.T) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 8192)
	runs := []Run{{100, 1196, pads}, {2000, 1196, pads}}
	for _, size := range []int{1, 16, 64} {
		if n := testing.AllocsPerRun(20, func() { dst = fixed.Locals64(dst[:0], tokens, size, runs, Root{}, false) }); n != 0 {
			t.Errorf("page size %d: got %v allocations, want 0", size, n)
		}
	}
}

// BenchmarkLocals64 hashes 8k tokens with two images, at SGLang's default page size and at the recommended one.
func BenchmarkLocals64(b *testing.B) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 8192)
	runs := []Run{{100, 1196, pads}, {2000, 1196, pads}}
	for name, size := range map[string]int{"page1": 1, "page16": 16} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dst = fixed.Locals64(dst[:0], tokens, size, runs, Root{}, false)
			}
		})
	}
}
