// Package block is the only place that defines the product's block hash: from token ids and names of media to local and chain
// hashes. It costs about 20 ns per block of 16 tokens, without an allocation, and returns no errors.
//
// A prompt is split into full blocks of B tokens; engines never cache the rest, and it is not hashed.
//
//	local(i) = F( u32le(token) × (B+L), names of media touching these tokens, root(i) )
//	chain(i) = G( chain(i-1), local(i) ), chain(-1) = 0
//	root(i)  = 0 for the base model, else a hash of the adapter's name; root(0) also of the cache salt
//
// A medium touches tokens if its span [Offset, Offset+Length) and they overlap, as in vLLM (v1/core/kv_cache_utils.py). As in
// vLLM, a cache salt changes block 0 only: every later block is reached through block 0.
//
// L, the lookahead, is 0 but for engines that draft and whose own block hashes cover the tokens after a block too (vLLM 0.33,
// get_request_block_hasher): there a block that is not followed by L tokens has no hash yet.
//
// # Why the hashes are keyed
//
// The index keeps 64 bits of a block and compares nothing else, so two prompts with one hash are one prompt to it, across tenants.
// Before, F was XXH3-64 with a public seed: a second preimage of a block took 20 s of CPU. A secret seed would not have helped,
// because XXH3 is no MAC: for inputs of 17 to 240 bytes it adds products (a ^ s1) × (b ^ s2), and an attacker who makes one factor 0 may
// choose the other freely; the secrets s1 and s2 depend on the seed by an addition only.
//
// So all hashes depend on a secret of the deployment, 32 bytes, in two steps (Carter and Wegman):
//
//   - NH of UMAC and VMAC with words of 64 bits: the sum, modulo 2^128, of (m[2i] + k[2i]) × (m[2i+1] + k[2i+1]). Two given
//     inputs have one sum with a probability of at most 2^-63 over the choice of k: that is proven, and holds for any
//     attacker who does not know k.
//   - SipHash-1-3 of the 16 bytes of that sum, under another part of the secret. It is a pseudorandom function: hashes, which agents
//     and replicas exchange, tell nothing of the keys.
//
// With n blocks in the index, each attempt of a client hits one of them with a probability below n × 2^-62: a million attempts
// against 50 M blocks, 1 in 10^5. Measured on an EPYC core, the least of twenty runs: a block of 16 tokens 17 ns, XXH3-64 7 ns; of 64
// tokens 28 and 26 ns; of 256 tokens 107 and 41 ns. SipHash-1-3 alone and HighwayHash take 22 ns for 64 bytes, and grow faster.
//
// Everything that is not a block has a kind of its own in the first word: names, salts and adapters are hashed whole, each to 64 bits.
//
// Processes that exchange hashes need one secret: see Secret. Dynamo's events carry hashes of its own, which have no key: see Dynamo.
package block

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Span is one medium's place in a prompt: tokens [Offset, Offset+Length), and the number of its name (see Key.Name).
type Span struct {
	Offset, Length int
	Name           uint64
}

// Root is what a sequence's blocks depend on besides their content: First is the root of its first block, Rest that of the others.
// The zero value is for the base model without a salt.
type Root struct{ First, Rest uint64 }

// nhWords is the number of NH's keys: two for an input's head, and 32. After as many words SipHash is applied to the sum, and the sum
// goes on from its hash, with the same 32.
const nhWords = 34

// Key hashes blocks under one secret. It does not change.
type Key struct {
	// ID tells keys apart, and nothing of their secrets.
	ID uint64

	nh         [nhWords]uint64
	sip, chain [2]uint64
}

// NewKey derives a key from a secret: 32 random bytes.
func NewKey(secret []byte) *Key {
	text, err := hkdf.Key(sha256.New, secret, nil, "sightline block hash 1", 8*(nhWords+5))
	if err != nil {
		panic(err) // only for a length beyond 8160
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	k := &Key{ID: word(0), sip: [2]uint64{word(1), word(2)}, chain: [2]uint64{word(3), word(4)}}
	for i := range k.nh {
		k.nh[i] = word(5 + i)
	}
	return k
}

// What is hashed.
const (
	kindBlock   = 1 + iota // token ids of 32 bits
	kindBlock64            // token ids of 64 bits
	kindName               // a medium's name that is not a digest
	kindDigest             // 32 bytes, also if written as 64 hex digits
	kindAdapter
	kindSalt
	kindLink
	kindBytes
)

// Root returns the root of an adapter's blocks in a sequence with a cache salt ("" for none).
func (k *Key) Root(adapter, salt string) (r Root) {
	if adapter != "" {
		r.Rest = k.sum(kindAdapter, bytesOfText(adapter), nil, 0) | 1
	}
	r.First = r.Rest
	if salt != "" {
		r.First = k.sum(kindSalt, bytesOfText(salt), nil, r.Rest) | 1
	}
	return r
}

// Name returns the number by which a name of a medium enters block hashes. The name's case counts, except in 64 hex digits.
func (k *Key) Name(name string) uint64 {
	if digest, ok := digestOf(name); ok {
		return k.Digest(digest[:])
	}
	return k.sum(kindName, bytesOfText(name), nil, 0)
}

// Name64 converts a name to 64 bits without a key: the first 16 digits of 64 hex digits, else XXH3-64 of the text. So TensorRT-LLM's block
// hashes in hex are read, and Dynamo converts images' names (1.6, hash_mm_identifier).
func Name64(name string) uint64 {
	if digest, ok := digestOf(name); ok {
		return binary.BigEndian.Uint64(digest[:])
	}
	return xxh3.HashString(name)
}

// digestOf reads 64 hex digits.
func digestOf(text string) (digest [32]byte, ok bool) {
	if len(text) != 2*len(digest) {
		return digest, false
	}
	_, err := hex.Decode(digest[:], bytesOfText(text))
	return digest, err == nil
}

// Digest returns Name of a digest's hex digits.
func (k *Key) Digest(digest []byte) uint64 { return k.sum(kindDigest, digest, nil, 0) }

// Link returns a number for the URL or path of a medium. It enters no block hash.
func (k *Key) Link(link string) uint64 { return k.sum(kindLink, bytesOfText(link), nil, 0) }

// Bytes returns a number for bytes that follow others, whose number is before. It enters no block hash.
func (k *Key) Bytes(raw []byte, before uint64) uint64 { return k.sum(kindBytes, raw, nil, before) }

// Form says how blocks are made of a prompt: of Size tokens each, with a hash that covers the Lookahead tokens after them too.
type Form struct{ Size, Lookahead int }

// MaxLookahead limits a lookahead: drafters look a few tokens ahead.
const MaxLookahead = 64

// Locals appends the local hash of every full block of tokens to dst. spans must be sorted by Offset. It allocates only to grow dst.
func (k *Key) Locals(dst []uint64, tokens []uint32, form Form, spans []Span, root Root) []uint64 {
	if form.Size <= 0 {
		return dst
	}
	first := 0 // spans before this index end before the current block
	at := root.First
	width := form.Size + form.Lookahead
	for start := 0; start+width <= len(tokens); start += form.Size {
		end := start + width
		for first < len(spans) && spans[first].Offset+spans[first].Length <= start {
			first++
		}
		if first == len(spans) || spans[first].Offset >= end {
			dst = append(dst, k.Local(tokens[start:end], nil, at))
		} else {
			dst = append(dst, k.withNames(tokens[start:end], spans[first:], start, at))
		}
		at = root.Rest
	}
	return dst
}

// withNames hashes a block that begins at token start and is touched by spans.
func (k *Key) withNames(tokens []uint32, spans []Span, start int, root uint64) uint64 {
	var few [8]uint64
	names := few[:0]
	for i := range spans {
		if spans[i].Offset >= start+len(tokens) {
			break
		}
		if spans[i].Offset+spans[i].Length > start {
			names = append(names, spans[i].Name)
		}
	}
	return k.Local(tokens, names, root)
}

// Local hashes one block: its tokens and its lookahead, and the names that touch these, in prompt order. root is of its place in its
// sequence.
func (k *Key) Local(tokens []uint32, names []uint64, root uint64) uint64 {
	return k.sum(kindBlock, bytesOf(tokens), names, root)
}

// Chain appends the chain hash of every block to dst: a hash of the chain hash before it and the block's local hash.
func (k *Key) Chain(dst []uint64, locals []uint64) []uint64 {
	chained := uint64(0)
	for _, l := range locals {
		chained = k.ChainAfter(chained, l)
		dst = append(dst, chained)
	}
	return dst
}

// ChainAfter returns the chain hash of a block of a local hash, behind the block of a chain hash; 0: it is the first.
func (k *Key) ChainAfter(chained, local uint64) uint64 { return sipHash(&k.chain, chained, local) }

// sum hashes an input: its kind and lengths, a root, bytes, and words.
func (k *Key) sum(kind int, raw []byte, words []uint64, root uint64) uint64 {
	head := uint64(kind)<<56 | uint64(len(words))<<40 | uint64(len(raw))
	hi, lo := bits.Mul64(head+k.nh[0], root+k.nh[1])
	i := 2 // of the next key

	// Four products at once take half the time of one after another.
	for len(raw) >= 8*8 {
		if i == nhWords {
			hi, lo, i = 0, sipHash(&k.sip, hi, lo), 2
		}
		n, m := (*[8]uint64)(k.nh[i:]), (*[8 * 8]byte)(raw)
		h0, l0 := bits.Mul64(binary.LittleEndian.Uint64(m[0:])+n[0], binary.LittleEndian.Uint64(m[8:])+n[1])
		h1, l1 := bits.Mul64(binary.LittleEndian.Uint64(m[16:])+n[2], binary.LittleEndian.Uint64(m[24:])+n[3])
		h2, l2 := bits.Mul64(binary.LittleEndian.Uint64(m[32:])+n[4], binary.LittleEndian.Uint64(m[40:])+n[5])
		h3, l3 := bits.Mul64(binary.LittleEndian.Uint64(m[48:])+n[6], binary.LittleEndian.Uint64(m[56:])+n[7])
		var carry uint64
		lo, carry = bits.Add64(lo, l0, 0)
		hi, _ = bits.Add64(hi, h0, carry)
		lo, carry = bits.Add64(lo, l1, 0)
		hi, _ = bits.Add64(hi, h1, carry)
		lo, carry = bits.Add64(lo, l2, 0)
		hi, _ = bits.Add64(hi, h2, carry)
		lo, carry = bits.Add64(lo, l3, 0)
		hi, _ = bits.Add64(hi, h3, carry)
		raw, i = raw[8*8:], i+8
	}
	for ; len(raw) >= 16; raw = raw[16:] {
		hi, lo, i = k.add(hi, lo, i, binary.LittleEndian.Uint64(raw), binary.LittleEndian.Uint64(raw[8:]))
	}
	if len(raw) > 0 { // the last bytes of an input that is not a multiple of 16
		var a, b uint64
		if len(raw) >= 8 {
			a, b = binary.LittleEndian.Uint64(raw), last(raw[8:])
		} else {
			a = last(raw)
		}
		hi, lo, i = k.add(hi, lo, i, a, b)
	}
	for ; len(words) >= 2; words = words[2:] {
		hi, lo, i = k.add(hi, lo, i, words[0], words[1])
	}
	if len(words) > 0 {
		hi, lo, _ = k.add(hi, lo, i, words[0], 0)
	}
	return sipHash(&k.sip, hi, lo)
}

// last returns up to 7 bytes as a word.
func last(raw []byte) (w uint64) {
	at := 0
	if len(raw) >= 4 {
		w, at = uint64(binary.LittleEndian.Uint32(raw)), 4
	}
	for ; at < len(raw); at++ {
		w |= uint64(raw[at]) << (8 * at)
	}
	return w
}

// add adds two words to an NH sum, and returns the sum and the next key.
func (k *Key) add(hi, lo uint64, i int, a, b uint64) (uint64, uint64, int) {
	if i == nhWords {
		hi, lo, i = 0, sipHash(&k.sip, hi, lo), 2
	}
	h, l := bits.Mul64(a+k.nh[i], b+k.nh[i+1])
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo, i + 2
}

// sipHash is SipHash-1-3 of the 16 bytes u64le(a) ‖ u64le(b) (Aumasson and Bernstein, 2012; the form of Rust's and Python's tables).
func sipHash(key *[2]uint64, a, b uint64) uint64 {
	v0, v1 := key[0]^0x736f6d6570736575, key[1]^0x646f72616e646f6d
	v2, v3 := key[0]^0x6c7967656e657261, key[1]^0x7465646279746573
	v3 ^= a
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v3 = v0^a, v3^b
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v3 = v0^b, v3^16<<56
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v2 = v0^16<<56, v2^0xff
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}

// bytesOf views token ids as little-endian bytes, without a copy. The supported machines, amd64 and arm64, are little-endian.
func bytesOf[ID uint32 | uint64](ids []ID) []byte {
	var one ID
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), len(ids)*int(unsafe.Sizeof(one)))
}

// bytesOfText views a text as bytes, without a copy.
func bytesOfText(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }

// SecretBytes is the length of a deployment's secret.
const SecretBytes = 32

// Secret is a deployment's secret, and its key. It is drawn at random at the start. Processes that exchange hashes (replicas, and the
// agents of workers) need the same one: it may be replaced once, when theirs is known. Between processes with different secrets, hashes
// of equal blocks differ: no block is found, and none by mistake. Safe for concurrent use.
//
// A nil Secret has the key Fixed.
type Secret struct{ now atomic.Pointer[secretKey] }

type secretKey struct {
	Key
	secret [SecretBytes]byte
}

// NewSecret draws a secret.
func NewSecret() *Secret {
	var b [SecretBytes]byte
	_, _ = rand.Read(b[:]) // it never fails
	s := new(Secret)
	s.Set(b)
	return s
}

// Set replaces the secret, and reports whether it was another one. Hashes made under the old one have to be computed anew.
func (s *Secret) Set(b [SecretBytes]byte) (changed bool) {
	before := s.now.Swap(&secretKey{*NewKey(b[:]), b})
	return before != nil && before.secret != b
}

// Key returns the current key. A caller that makes several hashes of one prompt or message keeps it for all of them.
func (s *Secret) Key() *Key {
	if s != nil {
		if k := s.now.Load(); k != nil {
			return &k.Key
		}
	}
	return fixed
}

// Bytes returns the current secret, for other processes of the deployment.
func (s *Secret) Bytes() [SecretBytes]byte { return s.now.Load().secret }

var fixed = NewKey(nil)

// Fixed returns a key that everybody can have: for tests, recordings and tools, and never for what clients send.
func Fixed() *Key { return fixed }
