package vision

import (
	"errors"
	"maps"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// randomRow is a directory with random settings, a prompt, and what the processor made of it.
type randomRow struct {
	Fam, Text, Error string
	Cfg, Pk, Config  obj // preprocessor_config.json, processor_config.json, config.json
	Kw               Kwargs
	Sizes            [][2]int
	RLE              rle
}

type randomFamily struct {
	Typ, Proc, IP string
	Tok           obj
	Specials      []string
}

type randomCases struct {
	Families map[string]randomFamily
	Rows     []randomRow
}

func readRandom(t *testing.T) (rec randomCases) {
	golden.JSON(t, &rec, "testdata/processor_random.json.gz")
	return rec
}

// load reads the directory of row i.
func (rec *randomCases) load(i int) (*Expander, *stubTokens, error) {
	r := rec.Rows[i]
	f := rec.Families[r.Fam]
	stub := newStub(append([]string{"\n\n"}, f.Specials...)...)
	image := merged(r.Cfg, obj{"processor_class": f.Proc, "image_processor_type": f.IP})
	files := obj{"config.json": merged(r.Config, obj{"model_type": f.Typ}), "tokenizer_config.json": f.Tok,
		"preprocessor_config.json": image, "processor_config.json": merged(r.Pk, nil)}
	if i%3 == 0 {
		files["preprocessor_config.json"] = obj{"patch_size": 1, "max_patches": 1} // ignored because of the nested one
		files["processor_config.json"] = merged(r.Pk, obj{"image_processor": image})
	}
	m, err := Load(dir(files), stub, Options{Reading: transformers})
	return m, stub, err
}

// TestProcessorRandom: random settings in a directory's files, random image sizes, one to three images, random kwargs, compared
// with what the processors of transformers 5.23.0 make of the prompt, or with their failure. A sample of 9,000 compared cases.
func TestProcessorRandom(t *testing.T) {
	rec := readRandom(t)
	fails := 0
	for i, r := range rec.Rows {
		special := map[string]bool{}
		for _, n := range rec.Families[r.Fam].Specials {
			special[n] = true
		}
		m, stub, err := rec.load(i)
		var ids []uint32
		if err == nil {
			ids, _, err = m.ExpandText(nil, r.Text, mediaOf(r.Sizes), r.Kw)
		}
		where := func() string { return string(marshal(r.Cfg)) + string(marshal(r.Pk)) + string(marshal(r.Kw)) }
		if r.Error != "" {
			fails++
			var refused *RefusedError
			var missing *MissingError
			if !errors.As(err, &refused) && !errors.As(err, &missing) {
				t.Errorf("%s %s %v: the processor fails (%s), ours gives %d ids, %v", r.Fam, where(), r.Sizes, r.Error, len(ids), err)
			}
			continue
		}
		want := r.RLE.stream(special, goldenBytes)
		if have := streamIDs(stub, ids, special); err != nil || have != want {
			t.Errorf("%s %s %v: %v\nwant %.300s\nhave %.300s", r.Fam, where(), r.Sizes, err, want, have)
		}
	}
	t.Logf("%d rows of %d processors, %d of them failing", len(rec.Rows), len(rec.Families), fails)
}

func merged(a, b obj) obj {
	out := obj{}
	for _, m := range []obj{a, b} {
		maps.Copy(out, m)
	}
	return out
}
