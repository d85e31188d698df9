package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sightline-router/sightline/lab/golden"
)

// compareSentencePiece reads models and reference ids, one JSON object per line, as testdata/sentencepiece.py writes them.
func compareSentencePiece(t *testing.T, text []byte) int {
	models := golden.LinesOf[struct {
		Name  string
		Model []byte
		Rows  []struct {
			Text string
			IDs  []uint32
		}
	}](t, text)
	for _, c := range models {
		tok, err := LoadSentencePiece(c.Model)
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.Name, err)
			continue
		}
		for _, row := range c.Rows {
			if got := tok.Encode(nil, row.Text, Options{}); !slices.Equal(got, row.IDs) {
				t.Errorf("%s: %q:\n got %v\nwant %v", c.Name, row.Text, got, row.IDs)
				break
			}
		}
	}
	return len(models)
}

// testdata/sentencepiece.jsonl.gz: python sentencepiece.py 5.
func TestSentencePiece(t *testing.T) {
	if n := compareSentencePiece(t, golden.Read(t, "testdata/sentencepiece.jsonl.gz")); n != 16 {
		t.Errorf("%d models, want 16", n)
	}
}

// TestDifferentialSentencePiece needs a Python with sentencepiece==0.2.3 in SIGHTLINE_PYTHON.
func TestDifferentialSentencePiece(t *testing.T) {
	python := golden.Folder(t, "SIGHTLINE_PYTHON")
	seed := os.Getenv("SIGHTLINE_SEED")
	if seed == "" {
		seed = "1"
	}
	out, err := exec.Command(python, "testdata/sentencepiece.py", seed).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d models", compareSentencePiece(t, out))
}

// TestSentencePieceNUL: a piece that is the NUL character is unused if bytes have pieces (expected ids: sentencepiece 0.2.3, whose
// log says so).
func TestSentencePieceNUL(t *testing.T) {
	for _, kind := range []uint64{pieceNormal, pieceUser} {
		var file []byte
		add := func(text string, score float32, kind uint64) {
			piece := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), text)
			piece = protowire.AppendFixed32(protowire.AppendTag(piece, 2, protowire.Fixed32Type), math.Float32bits(score))
			piece = protowire.AppendVarint(protowire.AppendTag(piece, 3, protowire.VarintType), kind)
			file = protowire.AppendBytes(protowire.AppendTag(file, 1, protowire.BytesType), piece)
		}
		add("<unk>", 0, pieceUnknown)
		add("<s>", 0, pieceControl)
		add("</s>", 0, pieceControl)
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b), 0, pieceByte)
		}
		add("\x00", -3, kind)
		for i, text := range []string{"a", "b", "▁", "ab"} {
			add(text, -1-0.1*float32(i), pieceNormal)
		}
		trainer := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 2)
		trainer = protowire.AppendVarint(protowire.AppendTag(trainer, 35, protowire.VarintType), 1)
		file = protowire.AppendBytes(protowire.AppendTag(file, 2, protowire.BytesType), trainer)
		normalizer := []byte{3 << 3, 0, 4 << 3, 0, 5 << 3, 1} // no dummy prefix, spaces kept, escaped
		file = protowire.AppendBytes(protowire.AppendTag(file, 3, protowire.BytesType), normalizer)
		tok, err := LoadSentencePiece(file)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string][]uint32{"\x00": {3}, "a\x00b": {260, 3, 261}, "\x00\x00": {3, 3},
			"ab\x00\x00a\x00": {263, 3, 3, 260, 3}, "a \x00": {260, 262, 3}} {
			if got := tok.Encode(nil, text, Options{}); !slices.Equal(got, want) {
				t.Errorf("kind %d: %q: %v, want %v", kind, text, got, want)
			}
		}
	}
}

func TestSentencePieceBadFiles(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "no pieces",
		"\x0a\x05":                          "unexpected EOF",
		"\x0a\x03\x0a\x01\xff":              "not UTF-8",
		"\x0a\x03\x0a\x01a":                 `model_type: "Unigram" is not supported`,
		"\x0a\x03\x0a\x01a\x12\x02\x18\x02": `"remove_extra_whitespaces" is not supported`,
		"\x0a\x03\x0a\x01a\x12\x02\x18\x02\x1a\x04\x20\x00\x28\x00":  `"escape_whitespaces: false" is not supported`,
		"\x0a\x03\x0a\x01a\x12\x02\x18\x02\x1a\x02\x20\x00":          "no piece of type unknown",
		"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x03":                  `model_type: "word" is not supported`,
		"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x02\x1a\x03\x12\x01x": `"precompiled_charsmap" is not supported`,
		"\x0f": "wire type",
	} {
		if _, err := LoadSentencePiece([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", in, err, want)
		}
	}
}

func tekkenFile(t *testing.T, change func(map[string]any)) []byte {
	vocab := []map[string]any{}
	add := func(text string) {
		vocab = append(vocab, map[string]any{"rank": len(vocab), "token_bytes": []byte(text), "token_str": nil})
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for _, w := range []string{"th", "he", "the", " t", " the", "\xe4\xb8", "中"} {
		add(w)
	}
	file := map[string]any{"vocab": vocab, "config": map[string]any{"pattern": patternLlama3,
		"default_vocab_size": len(vocab) + 20, "default_num_special_tokens": 20, "version": "v3"}}
	if change != nil {
		change(file)
	}
	b, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTekken(t *testing.T) {
	tok, err := LoadTekken(tekkenFile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	// By rank: "th" before "he", " t" before " the" can form; a whole word that is listed needs no merges.
	for text, want := range map[string]string{
		"the": "[278]", " the": "[280]", "athe": "[117 278]", "the the": "[278 280]", "[IMG]": "[111 93 97 91 113]", "中": "[282]",
	} {
		if got := fmt.Sprint(tok.Encode(nil, text, Options{})); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if back := tok.Decode(tok.Encode(nil, text, Options{AddSpecial: true}), true); back != text {
			t.Errorf("%q comes back as %q, want %q", text, back, text)
		}
	}
	if id, ok := tok.ID("[IMG]"); !ok || id != 10 || !tok.IsSpecial(10) {
		t.Errorf("[IMG] is %d, %v, want ok, id == 10, tok.IsSpecial(10)", id, ok)
	}
	for want, change := range map[string]func(map[string]any){
		"do not fit":    func(f map[string]any) { f["config"].(map[string]any)["default_vocab_size"] = 3 },
		"want the rank": func(f map[string]any) { f["config"].(map[string]any)["default_vocab_size"] = 400 },
		"missing, and":  func(f map[string]any) { f["config"].(map[string]any)["version"] = "v13" },
		"is missing":    func(f map[string]any) { f["vocab"] = f["vocab"].([]map[string]any)[1:] },
	} {
		if _, err := LoadTekken(tekkenFile(t, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
