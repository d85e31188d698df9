package vllmid

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Vectors made with vLLM's own modules on CPython 3.11 (untagged rules).
func TestBlockVectors(t *testing.T) {
	var a, b []uint32
	for i := range uint32(32) {
		a = append(a, i+1)
	}
	b = append(b, 101, 102, 103)
	for range 20 {
		b = append(b, 151655)
	}
	for range 9 {
		b = append(b, 104)
	}
	image := []Item{{strings.Repeat("aa", 32), 3, 20}}
	full := Scope{LoRA: "sql-lora", Salt: "tenant-a"}
	for _, v := range []struct {
		name   string
		algo   Algo
		seed   string
		tokens []uint32
		items  []Item
		scope  Scope
		want   [2]string
	}{
		{"A", SHA256CBOR, DefaultSeed, a, nil, Scope{}, [2]string{"cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
			"2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf"}},
		{"A", SHA256, DefaultSeed, a, nil, Scope{}, [2]string{"7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
			"8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577"}},
		{"B", SHA256CBOR, DefaultSeed, b, image, Scope{}, [2]string{"80dcd5136e4a91bc1ffdc641c9df1936e0cd47c9509b868e87b09ac38dcbe186",
			"2857f76123312a09d52119907dbaad6618e1e590fd08428a4adca05fb38b0b08"}},
		{"B", SHA256, DefaultSeed, b, image, Scope{}, [2]string{"a334f94e9a8bff7f71759b7ee723af150abbc7853c51934a8fccd20c854b9871",
			"8b2aeecb6658721ddbe504a8a795538a18ee7a72cd654723010f29b4ce68fbe5"}},
		{"C", SHA256CBOR, DefaultSeed, b, image, full, [2]string{"50bd7f6572851a331e7b6634f60dcccff6cca8b2e69be2e7ee07b3bf356728a5",
			"ee6c99a67794a86e13484c2618d892c93afe0ff15d18b94feb2da208259e0f2e"}},
		{"C", SHA256, DefaultSeed, b, image, full, [2]string{"b7fd4668bac024aa8d4b35aab7982bcaa35fbde29de738ef19ed48cbc048efa3",
			"8b8f641c359ccd0be5f23308cf06681683edc532345a0cd372fa2b8756483b6e"}},
		{"A", SHA256CBOR, "0", a, nil, Scope{}, [2]string{"202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
			"4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf"}},
		{"A", XXHashCBOR, "0", a, nil, Scope{}, [2]string{"c2d7a75070fc6d6b0c3fb0af456c1009", "93add93233ea572fb2e2b1685bac6f8d"}},
	} {
		chain := must(NewBlockHasher(v.algo, v.seed, false)).Chain(v.tokens, 16, v.items, v.scope)
		for i, want := range v.want {
			if got := hex.EncodeToString([]byte(chain[i])); got != want {
				t.Errorf("%s %s seed %q block %d: %s, want %s", v.name, v.algo, v.seed, i, got, want)
			}
		}
	}
	if got := must(NewBlockHasher(SHA256CBOR, DefaultSeed, false)).Chain(a, 16, nil, Scope{})[0].Uint64(); got != 8866452693264111234 {
		t.Errorf("number on the wire: got %d, want 8866452693264111234", got)
	}
}

// One image twice in one block: equal identifiers are two objects, the tag "mm" is one, so its second use is a memo
// reference. The bytes are from CPython's pickle.
func TestPickleBytes(t *testing.T) {
	got := pickleBlock(Digest(make([]byte, 32)), []uint32{5, 300, 70000, 4, 4}, []Key{
		{Kind: KeyLoRA, Text: "n", Path: "p"}, {Kind: KeyMedia, Text: "aaaa", Rel: 3},
		{Kind: KeyMedia, Text: "bbbb", Rel: -2}, {Kind: KeySalt, Text: "s"},
	}, true)
	want := "8005957e00000000000000" + "4320" + strings.Repeat("00", 32) + "94" + "284b054d2c014a701101004b044b047494" + "28" +
		"8c046c6f7261948c016e948c01709487948c026d6d948c0461616161944b0387946806" +
		"8c0462626262944afeffffff87948c0a63616368655f73616c74948c0173948694749487942e"
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
	// Untagged, the same identifier twice: both written out.
	tokens := append(append(append([]uint32{5, 5}, 9, 9, 9, 9, 6), 9, 9, 9, 9), 7, 7, 7, 7, 7)
	bb := strings.Repeat("bb", 32)
	d := must(NewBlockHasher(SHA256, DefaultSeed, false)).Chain(tokens, 16, []Item{{bb, 2, 4}, {bb, 7, 4}}, Scope{})[0]
	if hex.EncodeToString([]byte(d)) != "3e44cd04d0b0b31844b8e63670a47cef3e9f6f740bc64ebd1f1f6f992645f8eb" {
		t.Errorf("same image twice: %x", d)
	}
}

func TestImageVectors(t *testing.T) {
	const model = "Qwen/Qwen2.5-VL-7B-Instruct"
	rgb := must(base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC"))
	rgba := must(base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR42mP4z8DwHwgbGMA0EAAAP9cIeV/HbbEAAAAASUVORK5CYII="))
	pal := must(base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAMAAABFaP0WAAAABlBMVEUKFB4oMjzVG7TpAAAADElEQVR42mNgYARCAAAMAAMVnhj8AAAAAElFTkSuQmCC"))
	pixels := Kwargs{Processor: gjson.Parse(`{"max_pixels":1003520}`)}
	for _, v := range []struct {
		name string
		form ImageForm
		algo string
		raw  []byte
		kw   Kwargs
		want string
	}{
		{"rgb flat", FormFlat, "", rgb, Kwargs{}, "4c83171ba3c124d2b02f97bcb3381cede24a3906d6590b187deeeb9c9285ca43"},
		{"rgb nested", FormNested, "", rgb, Kwargs{}, "4c83171ba3c124d2b02f97bcb3381cede24a3906d6590b187deeeb9c9285ca43"},
		{"rgb framed", FormFramed, "blake3", rgb, Kwargs{}, "37284b8b0ad11582315bc3873e9aa62ee57a1e4548f3cdff3c024349b6068b5b"},
		{"rgb flat sha256", FormFlat, "sha256", rgb, Kwargs{}, "8f630adf9a280c4df94e667134fde2168a8ee01d2df731f513b79c20e1d364e8"},
		{"rgb framed sha256", FormFramed, "sha256", rgb, Kwargs{}, "1689cd35fd13de0bf468e90f1a631cc58f66e221bc42fd7100b7df8477e7892d"},
		{"rgba io_config", FormIOConfig, "", rgba, Kwargs{}, "f072c4a0c99fceb95f90b53eec7ebb26941bc0aaa5d423f0bd3e9ebfc1abe4d3"},
		{"rgba framed", FormFramed, "", rgba, Kwargs{}, "4b2b1c374bc7e666636ef339de1eabe9014d9829f89db3382b4e631551e0fd03"},
		{"palette nested", FormNested, "", pal, Kwargs{}, "55748987d2c6014e482ccfafd3d7ba80fecb34af516116d6b222fc654ca28e60"},
		{"palette framed", FormFramed, "", pal, Kwargs{}, "91b74fc46c69169b5c774538de2ec5f10dfe097a80b4745ed53d91ae372a1e1b"},
		{"kwargs flat", FormFlat, "", rgb, pixels, "e2b6769d5b920cce377da6da461f97bac623d6aa5d687eb5aaad67797eba5dad"},
		{"kwargs framed", FormFramed, "", rgb, pixels, "78321d2ea5873d24623e4d7c81a66cb1bcc108c9c0fd4aa17e3a63aca822772a"},
	} {
		if got := must(NewNamer(v.form, model, v.algo, "")).Image(v.raw, v.kw); got != v.want {
			t.Errorf("%s: %s, want %s", v.name, got, v.want)
		}
	}
	for _, v := range []struct {
		form ImageForm
		kw   Kwargs
		want string
	}{
		{FormFlat, Kwargs{}, "my-uuid-1"},
		{FormFramed, Kwargs{}, "my-uuid-1"},
		{FormFlat, pixels, "9ea050b4f9d6b87ff333ca312daa275818cb318c6bee99aa0ae4a79f5e7bf46e"},
		{FormFramed, pixels, "81b411cbf6e37a1fe0a0ee39f134aff09d84e5800b777cadeaa3eeef392b7771"},
	} {
		if got := must(NewNamer(v.form, model, "", "")).UUID("image", "my-uuid-1", v.kw); got != v.want {
			t.Errorf("uuid, form %d: %s, want %s", v.form, got, v.want)
		}
	}
}

func TestRulesOf(t *testing.T) {
	for version, want := range map[string]Rules{
		"0.23.0": {Version: "0.23.0", Image: FormFlat},
		"0.30.0": {Version: "0.30.0", Image: FormNested, MapEvents: true, ReplayTopic: true, FixedSeed: true, SessionID: true},
		"0.32.0": {Version: "0.32.0", Image: FormFramed, TaggedKeys: true, MapEvents: true, ReplayTopic: true, FixedSeed: true,
			SessionID: true, EventSources: true},
	} {
		if got, err := RulesOf(version); got != want || err != nil {
			t.Errorf("%s: %+v %v, want %+v", version, got, err, want)
		}
	}
	for _, bad := range []string{"", "1.0", "0.21.0", "0.34.0", "0.x", "0"} {
		if _, err := RulesOf(bad); err == nil {
			t.Errorf("version %q was accepted: got %v, want an error", bad, err)
		}
	}
}

// IsRGB reads files that clients send: any bytes must give an answer.
func FuzzIsRGB(f *testing.F) {
	f.Add([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x02\x00\x00\x00\x02\x08\x02"))
	f.Add([]byte("\xff\xd8\xff\xe0\x00\x04\x00\x00\xff\xc0\x00\x11\x08\x00\x01\x00\x01\x03"))
	f.Add([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("II*\x00\x08\x00\x00\x00\x01\x00\x06\x01\x03\x00\x01\x00\x00\x00\x02\x00\x00\x00"))
	f.Add([]byte("BM\x00\x00"))
	f.Add([]byte("GIF89a"))
	f.Fuzz(func(t *testing.T, file []byte) { IsRGB(file) })
}

func BenchmarkChain8k(b *testing.B) {
	tokens := make([]uint32, 8192)
	items := []Item{{strings.Repeat("ab", 32), 100, 1196}}
	h := must(NewBlockHasher(SHA256, DefaultSeed, true))
	for b.Loop() {
		h.Chain(tokens, 16, items, Scope{})
	}
	b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// Chain hashes all full blocks of a prompt.
func (h *BlockHasher) Chain(tokens []uint32, size int, items []Item, scope Scope) []Digest {
	if size <= 0 {
		return nil
	}
	chain := make([]Digest, 0, len(tokens)/size)
	parent := h.root
	for start := 0; start+size <= len(tokens); start += size {
		parent = h.Block(parent, tokens[start:start+size], Keys(start, start+size, items, scope))
		chain = append(chain, parent)
	}
	return chain
}
