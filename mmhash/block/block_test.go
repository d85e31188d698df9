package block

import "testing"

// Vectors: Dynamo 1.6.1 (dynamo-kv-router tests) and the wheel ai-dynamo-runtime 1.6.1.
func TestDynamoTextVectors(t *testing.T) {
	locals := Locals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 4, nil, Seed, 0)
	want := []uint64{14643705804678351452, 16777012769546811212, 483935686894639516}
	if len(locals) != 3 || locals[0] != want[0] || locals[1] != want[1] || locals[2] != want[2] {
		t.Fatalf("locals %d, want %d", locals, want)
	}
	chain := Chain(nil, locals)
	want = []uint64{14643705804678351452, 4945711292740353085, 12583592247330656132}
	for i := range want {
		if chain[i] != want[i] {
			t.Errorf("chain[%d] = %d, want %d", i, chain[i], want[i])
		}
	}
	if got := Locals(nil, []uint32{0, 1, 2, 3}, 4, nil, SeedFor("adapter-a"), 0)[0]; got != 6665157333201000639 {
		t.Errorf("adapter: %d", got)
	}
}

func TestNameHash(t *testing.T) {
	for name, want := range map[string]uint64{
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": 0x0123456789abcdef,
		"https://example.com/image.jpg":                                    7734907907301923238,
		"opaque-renderer-image-0":                                          14437604544409538977,
	} {
		if got := NameHash(name); got != want {
			t.Errorf("NameHash(%q) = %d, want %d", name, got, want)
		}
	}
}

// TestMediaInBlock: with one picture in a block the hash is Dynamo's suffix form; with two it differs on purpose if they are
// swapped.
func TestMediaInBlock(t *testing.T) {
	tokens := make([]uint32, 32)
	for i := range tokens {
		tokens[i] = 100
	}
	one := Locals(nil, tokens, 32, []Span{{0, 32, 0xDEADBEEF}}, Seed, 0)[0]
	if one != 231838601075267525 {
		t.Errorf("one name: %d", one)
	}
	ab := Locals(nil, tokens, 32, []Span{{2, 5, 0xA}, {10, 5, 0xB}}, Seed, 0)[0]
	ba := Locals(nil, tokens, 32, []Span{{2, 5, 0xB}, {10, 5, 0xA}}, Seed, 0)[0]
	if ab == ba {
		t.Error("two pictures swapped inside one block have one hash")
	}
}

// TestSpansTouchBlocks: which blocks a span touches: ends are exclusive, a salt is in block 0 only.
func TestSpansTouchBlocks(t *testing.T) {
	tokens := make([]uint32, 16)
	plain := Locals(nil, tokens, 4, nil, Seed, 0)
	span := Locals(nil, tokens, 4, []Span{{4, 4, 7}}, Seed, 0)
	for i, touched := range []bool{false, true, false, false} {
		if (plain[i] != span[i]) != touched {
			t.Errorf("block %d: touched = %v, want %v", i, !touched, touched)
		}
	}
	salted := Locals(nil, tokens, 4, nil, Seed, SaltHash("tenant"))
	for i, touched := range []bool{true, false, false, false} {
		if (plain[i] != salted[i]) != touched {
			t.Errorf("salt, block %d: touched = %v, want %v", i, !touched, touched)
		}
	}
}

func TestLocalsAllocateNothing(t *testing.T) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 512)
	spans := []Span{{100, 1196, 1}, {2000, 1196, 2}}
	if n := testing.AllocsPerRun(20, func() { dst = Locals(dst[:0], tokens, 16, spans, Seed, 0) }); n != 0 {
		t.Errorf("%v allocations for 512 blocks", n)
	}
}

func BenchmarkLocals8k(b *testing.B) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 512)
	spans := []Span{{100, 1196, 1}, {2000, 1196, 2}}
	b.ReportAllocs()
	for b.Loop() {
		dst = Locals(dst[:0], tokens, 16, spans, Seed, 0)
	}
	b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
