package block

import (
	"encoding/binary"
	"encoding/hex"
	"math/big"
	"slices"
	"strings"
	"testing"
)

// key returns another key than fixed.
func key(secret byte) *Key {
	return NewKey(slices.Repeat([]byte{secret}, SecretBytes))
}

// TestSum compares a hash with the sum in the package's comment, in big numbers, for lengths around NH's keys; SipHash-1-3 is compared
// with the reference implementation's vectors (veorq/SipHash, 16 bytes 0 … 15 under the key 0 … 15).
func TestSum(t *testing.T) {
	word := func(i uint64) uint64 { return (i+1)*0x9E3779B97F4A7C15 ^ i<<40 }
	k := key(3)
	for _, size := range []int{1, 2, 3, 4, 15, 16, 17, 60, 61, 64, 65, 76, 200} {
		for _, n := range []int{0, 1, 2, 5} {
			var tokens []uint32
			var names []uint64
			for i := range size {
				tokens = append(tokens, uint32(word(uint64(i))))
			}
			for i := range n {
				names = append(names, word(uint64(i+1000)))
			}
			raw := slices.Clone(bytesOf(tokens))
			for len(raw)%16 != 0 {
				raw = append(raw, 0)
			}
			words := []uint64{kindBlock<<56 | uint64(n)<<40 | uint64(4*size), 77}
			for ; len(raw) > 0; raw = raw[8:] {
				words = append(words, binary.LittleEndian.Uint64(raw))
			}
			words = append(words, names...)
			if len(words)%2 == 1 {
				words = append(words, 0)
			}
			sum := new(big.Int)
			mod := new(big.Int).Lsh(big.NewInt(1), 128)
			out := func() uint64 {
				var b [16]byte
				sum.FillBytes(b[:])
				return sipHash(&k.sip, binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]))
			}
			for i := 0; i < len(words); i += 2 {
				at := i // of the keys
				if i >= nhWords {
					at = 2 + (i-2)%(nhWords-2)
				}
				if i >= nhWords && at == 2 {
					sum.SetUint64(out())
				}
				a := new(big.Int).SetUint64(words[i] + k.nh[at])
				b := new(big.Int).SetUint64(words[i+1] + k.nh[at+1])
				sum.Mod(sum.Add(sum, a.Mul(a, b)), mod)
			}
			got, want := k.Local(tokens, names, 77), out()
			if got != want {
				t.Errorf("%d tokens, %d names: %x, want %x", size, n, got, want)
			}
		}
	}
}

// TestKeyed: without the secret nothing is known of any hash, and what an attacker computes under one secret fails under another.
// A block whose every product has a factor 0 is what makes XXH3's and NH's sums fail once their keys are known.
func TestKeyed(t *testing.T) {
	a, b := key(1), key(2)
	if a.ID == b.ID || a.ID == fixed.ID || *a != *key(1) {
		t.Error("keys are not those of their secrets")
	}
	tokens, zero := make([]uint32, 16), make([]uint32, 16)
	for i := range 4 { // the second factor is 0 under a: the first one may be anything
		for half := range 2 {
			n := -a.nh[2+2*i+1]
			zero[4*i+2+half] = uint32(n >> (32 * half))
		}
	}
	other := slices.Clone(zero)
	other[0], other[1] = 123, 456
	if a.Local(zero, nil, 0) != a.Local(other, nil, 0) {
		t.Error("this test does not find a's collisions")
	}
	if b.Local(zero, nil, 0) == b.Local(other, nil, 0) {
		t.Error("b has a's collisions")
	}
	for what, pair := range map[string][2]uint64{
		"tokens":  {a.Local(tokens, nil, 0), b.Local(tokens, nil, 0)},
		"ids":     {a.Local64(nil, []uint64{1 << 40}, 0), b.Local64(nil, []uint64{1 << 40}, 0)},
		"chain":   {a.Chain(nil, []uint64{1})[0], b.Chain(nil, []uint64{1})[0]},
		"salt":    {a.Root("", "s").First, b.Root("", "s").First},
		"adapter": {a.Root("l", "").Rest, b.Root("l", "").Rest},
		"name":    {a.Name("n"), b.Name("n")},
		"link":    {a.Link("n"), b.Link("n")},
	} {
		if pair[0] == pair[1] {
			t.Errorf("%s: one hash under two secrets", what)
		}
	}
}

// TestKindsAreApart: one text as a name, a digest, a salt, an adapter, a link and a block has six numbers.
func TestKindsAreApart(t *testing.T) {
	text := strings.Repeat("abcd", 8)
	tokens := make([]uint32, 8)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32([]byte(text[4*i:]))
	}
	seen := map[uint64]string{}
	for what, h := range map[string]uint64{"name": fixed.Name(text), "digest": fixed.Digest([]byte(text)), "salt": fixed.Root("", text).First,
		"adapter": fixed.Root(text, "").Rest, "salt and adapter": fixed.Root(text, text).First, "link": fixed.Link(text),
		"block": fixed.Local(tokens, nil, 0), "in ids": fixed.Local64(nil, []uint64{1 << 50, 0, 0, 0}, 0),
		"shorter": fixed.Name(text[1:]), "longer": fixed.Name(text + "\x00")} {
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have one number", what, other)
		}
		seen[h] = what
	}
	if hexed := hex.EncodeToString([]byte(text)); fixed.Name(hexed) != fixed.Digest([]byte(text)) ||
		fixed.Name(strings.ToUpper(hexed)) != fixed.Name(hexed) {
		t.Error("a digest in hex is another one")
	}
	if fixed.Root("", "") != (Root{}) {
		t.Error("the base model without a salt has a root")
	}
}

// TestNamesOfABlock: two images swapped inside one block are two blocks.
func TestNamesOfABlock(t *testing.T) {
	tokens := make([]uint32, 32)
	ab := fixed.Locals(nil, tokens, Form{Size: 32}, []Span{{2, 5, 0xA}, {10, 5, 0xB}}, Root{})[0]
	ba := fixed.Locals(nil, tokens, Form{Size: 32}, []Span{{2, 5, 0xB}, {10, 5, 0xA}}, Root{})[0]
	if ab == ba || ab != fixed.Local(tokens, []uint64{0xA, 0xB}, 0) {
		t.Error("two images swapped inside one block have one hash")
	}
}

// TestSpansTouchBlocks: which blocks a span touches: ends are exclusive; a salt is in block 0 only, an adapter in all.
func TestSpansTouchBlocks(t *testing.T) {
	tokens := make([]uint32, 16)
	plain := fixed.Locals(nil, tokens, Form{Size: 4}, nil, Root{})
	for what, c := range map[string]struct {
		got     []uint64
		touched []bool
	}{
		"span":    {fixed.Locals(nil, tokens, Form{Size: 4}, []Span{{4, 4, 7}}, Root{}), []bool{false, true, false, false}},
		"salt":    {fixed.Locals(nil, tokens, Form{Size: 4}, nil, fixed.Root("", "tenant")), []bool{true, false, false, false}},
		"adapter": {fixed.Locals(nil, tokens, Form{Size: 4}, nil, fixed.Root("sql", "")), []bool{true, true, true, true}},
	} {
		for i, touched := range c.touched {
			if (plain[i] != c.got[i]) != touched {
				t.Errorf("%s, block %d: touched = %v, want %v", what, i, !touched, touched)
			}
		}
	}
}

// TestLookaheadOfLocals: with a lookahead a block's hash changes with the tokens and the media that follow it, and a block that is not
// followed by as many tokens has none.
func TestLookaheadOfLocals(t *testing.T) {
	locals := func(tokens []uint32, spans ...Span) []uint64 {
		return fixed.Locals(nil, tokens, Form{Size: 4, Lookahead: 2}, spans, Root{})
	}
	tokens := make([]uint32, 14)
	plain := locals(tokens)
	if len(plain) != 3 || len(locals(tokens[:13])) != 2 {
		t.Errorf("%d blocks of 14 tokens, %d of 13, want 3, 2", len(plain), len(locals(tokens[:13])))
	}
	other := slices.Clone(tokens)
	other[5] = 1
	for what, c := range map[string]struct {
		got     []uint64
		touched []bool
	}{
		"a token in it and before it": {locals(other), []bool{true, true, false}},
		"a span behind it":            {locals(tokens, Span{9, 1, 7}), []bool{false, true, true}},
	} {
		for i, touched := range c.touched {
			if (plain[i] != c.got[i]) != touched {
				t.Errorf("%s, block %d: touched = %v, want %v", what, i, !touched, touched)
			}
		}
	}
}

// TestSecret: a secret is random, and can be replaced by another process's; a nil one has the fixed key.
func TestSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if a.Key().ID == b.Key().ID || (*Secret)(nil).Key() != fixed || new(Secret).Key() != fixed {
		t.Error("not random, or not the fixed one")
	}
	if !a.Set(b.Bytes()) || a.Set(b.Bytes()) || *a.Key() != *b.Key() {
		t.Error("not replaced")
	}
}

func TestLocalsAllocateNothing(t *testing.T) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 512)
	spans := []Span{{100, 1196, 1}, {2000, 1196, 2}}
	if n := testing.AllocsPerRun(20, func() { dst = fixed.Locals(dst[:0], tokens, Form{Size: 16}, spans, Root{}) }); n != 0 {
		t.Errorf("%v allocations for 512 blocks, want 0", n)
	}
	if n := testing.AllocsPerRun(20, func() {
		fixed.Name("a name")
		fixed.Root("adapter", "salt")
		dst = fixed.Chain(dst[:0], dst[:4])
	}); n != 0 {
		t.Errorf("%v allocations for a name, want 0", n)
	}
}

func BenchmarkLocals8k(b *testing.B) {
	tokens := make([]uint32, 8192)
	dst := make([]uint64, 0, 512)
	spans := []Span{{100, 1196, 1}, {2000, 1196, 2}}
	b.ReportAllocs()
	for b.Loop() {
		dst = fixed.Locals(dst[:0], tokens, Form{Size: 16}, spans, Root{})
	}
	b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkLocal hashes one block of text.
func BenchmarkLocal(b *testing.B) {
	for name, size := range map[string]int{"16": 16, "64": 64, "256": 256} {
		tokens := make([]uint32, size)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				fixed.Local(tokens, nil, 0)
			}
		})
	}
}

func TestName64(t *testing.T) {
	for name, want := range map[string]uint64{
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": 0x0123456789abcdef,
		"https://example.com/image.jpg":                                    7734907907301923238,
		"opaque-renderer-image-0":                                          14437604544409538977,
	} {
		if got := Name64(name); got != want {
			t.Errorf("Name64(%q) = %d, want %d", name, got, want)
		}
	}
}
