package block

import (
	"slices"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

type dynamoVector struct {
	ID        string   `json:"id"`
	Size      int      `json:"block_size"`
	Tokens    []uint32 `json:"tokens"`
	Infos     []*infos `json:"block_mm_infos"`
	Requests  *infos   `json:"request_mm"`
	LoRA      string   `json:"lora_name"`
	Namespace string   `json:"cache_namespace"`
	Eagle     bool     `json:"is_eagle"`
	Locals    []uint64 `json:"local_hashes"`
}

type infos struct {
	Objects []struct {
		Name    uint64   `json:"mm_hash"`
		Offsets [][2]int `json:"offsets"`
	} `json:"mm_objects"`
}

// TestDynamoVectors uses a selection of results of ai-dynamo-runtime 1.6.1 (compute_block_hash_for_seq) and the crate
// dynamo-kv-router 1.6.1.
func TestDynamoVectors(t *testing.T) {
	if n := checkDynamo(t, "testdata/dynamo_block_hashes.jsonl.gz"); n < 80 {
		t.Errorf("only %d vectors, want at least 80", n)
	}
}

func TestConformanceDynamoBlocks(t *testing.T) {
	t.Logf("conformance: Dynamo 1.6.1 block hashes: %d vectors equal", checkDynamo(t, golden.Dir(t, "dynamo", "block_hashes.jsonl")))
}

func checkDynamo(t *testing.T, file string) (n int) {
	for _, v := range golden.Lines[dynamoVector](t, file) {
		d := Dynamo{Size: v.Size, Seed: DynamoSeed(v.LoRA, v.Namespace), Eagle: v.Eagle}
		got := d.Locals(nil, v.Tokens, v.blockSpans())
		if !slices.Equal(got, v.Locals) {
			t.Errorf("%s: locals %d, want %d", v.ID, got, v.Locals)
		}
		if spans, ok := v.requestSpans(); ok {
			if got := d.Locals(nil, v.Tokens, spans); !slices.Equal(got, v.Locals) {
				t.Errorf("%s: locals %d of the request's spans, want %d", v.ID, got, v.Locals)
			}
		}
		n++
	}
	return n
}

// requestSpans returns the media as a request has them. ok is false if one object is in one block twice, which Dynamo's request
// form names once; our spans are one per image, as in the engines' events.
func (v *dynamoVector) requestSpans() (spans []Span, ok bool) {
	if v.Requests == nil {
		return nil, false
	}
	for _, o := range v.Requests.Objects {
		for i, r := range o.Offsets {
			if i > 0 && o.Offsets[i-1][1] > r[0]/v.Size*v.Size {
				return nil, false
			}
			spans = append(spans, Span{Offset: r[0], Length: r[1] - r[0], Name: o.Name})
		}
	}
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Offset - b.Offset })
	return spans, true
}

// blockSpans extends each object of a block over the whole block, because only which blocks an object touches matters.
func (v *dynamoVector) blockSpans() (spans []Span) {
	for i, in := range v.Infos {
		if in == nil {
			continue
		}
		for _, o := range in.Objects {
			spans = append(spans, Span{Offset: i * v.Size, Length: v.Size, Name: o.Name})
		}
	}
	return spans
}

// TestDynamoPads: the runs of an image's token become pads: the k-th run by the k-th name, surplus runs by the last one; in a
// block with a name but without the token, the name follows the tokens.
func TestDynamoPads(t *testing.T) {
	const img = 151655
	a, b := uint64(0x844ceec942de2dd2), uint64(7)
	if Pad(a) != 49115154 || Pad(0) != 1_000_000 || Pad(1<<64-1) != 1074741823 {
		t.Errorf("pads %d %d %d, want 49115154, 1_000_000, 1074741823", Pad(a), Pad(0), Pad(1<<64-1))
	}
	d := Dynamo{Size: 4, Seed: dynamoSeed, Pads: true, ImageToken: img}
	for name, c := range map[string]struct {
		tokens []uint32
		spans  []Span
		want   []uint32
		names  []uint64
	}{
		"one run":         {[]uint32{10, 20, img, img}, []Span{{2, 2, a}}, []uint32{10, 20, Pad(a), Pad(a)}, nil},
		"two runs":        {[]uint32{img, 5, img, img}, []Span{{0, 1, a}, {2, 2, b}}, []uint32{Pad(a), 5, Pad(b), Pad(b)}, nil},
		"touching images": {[]uint32{img, img, img, img}, []Span{{0, 2, a}, {2, 2, b}}, []uint32{Pad(a), Pad(a), Pad(a), Pad(a)}, nil},
		"row breaks":      {[]uint32{img, 6, img, 6}, []Span{{0, 4, a}}, []uint32{Pad(a), 6, Pad(a), 6}, nil},
		"no such token":   {[]uint32{1, 2, 3, 4}, []Span{{0, 4, b}, {3, 1, a}}, []uint32{1, 2, 3, 4}, []uint64{b, a}},
	} {
		if got, want := d.Locals(nil, c.tokens, c.spans)[0], dynamoLocal(nil, c.want, c.names, dynamoSeed); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	if got := d.Locals(nil, []uint32{10, 20, img, img}, []Span{{2, 2, a}})[0]; got != 71881790567603244 {
		t.Errorf("pad form: got %d, want 71881790567603244", got)
	}
	if got := (Dynamo{Size: 4, Seed: dynamoSeed}).Locals(nil, []uint32{10, 20, img, img}, []Span{{2, 2, a}})[0]; got != 16596569145532104744 {
		t.Errorf("names behind: got %d, want 16596569145532104744", got)
	}
}

// Vectors: Dynamo 1.6.1 (dynamo-kv-router tests) and the wheel ai-dynamo-runtime 1.6.1.
func TestDynamoTextVectors(t *testing.T) {
	locals := Dynamo{Size: 4, Seed: dynamoSeed}.Locals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, nil)
	if want := []uint64{14643705804678351452, 16777012769546811212, 483935686894639516}; !slices.Equal(locals, want) {
		t.Fatalf("locals %d, want %d", locals, want)
	}
	if got := (Dynamo{Size: 4, Seed: DynamoSeed("adapter-a", "")}).Locals(nil, []uint32{0, 1, 2, 3}, nil)[0]; got != 6665157333201000639 {
		t.Errorf("adapter: got %d, want 6665157333201000639", got)
	}
	tokens := slices.Repeat([]uint32{100}, 32)
	if got := (Dynamo{Size: 32, Seed: dynamoSeed}).Locals(nil, tokens, []Span{{0, 32, 0xDEADBEEF}})[0]; got != 231838601075267525 {
		t.Errorf("one name: got %d, want 231838601075267525", got)
	}
}
