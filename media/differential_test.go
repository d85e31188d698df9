package media_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// TestDifferentialVLLMImages: random image files of every kind that Pillow writes, intact and damaged, through vLLM's own loader
// and hasher in the same run (testdata/random_images.py). A file that vLLM reads has the same mode, size and names here; one that
// Pillow does not open is refused. A file whose pixels prove invalid only when decoded may be accepted here. Three kinds of damage
// are not reproduced, and counted: damage after the facts (frames of an animated WebP) is accepted here; vLLM serves an image unrotated
// if rotating it fails in Pillow; Pillow knows some formats that are not read here without their first bytes.
// SIGHTLINE_VLLM is where vLLM 0.31 or later is installed; SIGHTLINE_SEED, SIGHTLINE_COUNT and SIGHTLINE_KINDS (png,rest,…) vary
// the run.
func TestDifferentialVLLMImages(t *testing.T) {
	venv := os.Getenv("SIGHTLINE_VLLM")
	if venv == "" {
		t.Skip("SIGHTLINE_VLLM is not set: vLLM is not part of the project")
	}
	seed := cmp.Or(os.Getenv("SIGHTLINE_SEED"), strconv.FormatInt(time.Now().UnixNano(), 10))
	cmd := exec.Command(venv+"/bin/python", "-B", "testdata/random_images.py", seed, cmp.Or(os.Getenv("SIGHTLINE_COUNT"), "600"))
	if kinds := os.Getenv("SIGHTLINE_KINDS"); kinds != "" {
		cmd.Args = append(cmd.Args, kinds)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var w struct {
			Name, IO, Refused, Why, Mode, Format string
			File                                 []byte
			Size                                 [2]int
			Names                                map[string]string
		}
		if err := d.Decode(&w); err != nil {
			t.Fatal(err)
		}
		damaged := strings.HasPrefix(w.Name, "damaged")
		f, err := media.Identify(media.File(w.File))
		switch {
		case header.KindOf(err) == header.Unsupported:
			counts["format not read"]++
			continue
		case damaged && (w.Refused == "open" && err == nil && bytes.HasPrefix(w.File, []byte("RIFF")) && bytes.Contains(w.File, []byte("ANMF")) ||
			strings.HasPrefix(w.Name, "damaged rest") && w.Refused == "" ||
			w.Refused == "" && err == nil && f.Orientation > 1 && w.Size == [2]int{f.Width, f.Height}):
			counts["damaged, not followed"]++
		case w.Refused == "load" && err == nil:
			counts["bad only when decoded"]++
		case w.Refused == "open" && err == nil:
			t.Errorf("%s: read as %+v, vLLM: %s\n%x", w.Name, f, w.Why, head(w.File))
		case w.Refused != "":
			counts["refused by both"]++
		case err != nil:
			t.Errorf("%s: %v, vLLM reads it: %s %s %v\n%x", w.Name, err, w.Format, w.Mode, w.Size, head(w.File))
		default:
			counts["read by both"]++
			if width, height := f.UprightSize(); f.Mode != w.Mode || [2]int{width, height} != w.Size {
				t.Errorf("%s: %+v, vLLM: %s %s %v\n%x", w.Name, f, w.Format, w.Mode, w.Size, head(w.File))
				continue
			}
			for alg, want := range w.Names {
				v, err := vllm.NewNames(rules.Version{0, 31, 0}, "org/model", alg, w.IO)
				if err != nil {
					t.Fatal(err)
				}
				r, err := v.Recipe(enginehash.Item{Mode: f.Mode, Bytes: f.Bytes})
				if err != nil || r.Of(w.File) != want {
					t.Errorf("%s %s: named %s (%v), vLLM: %s, want no error, %q", w.Name, alg, r.Of(w.File), err, want, want)
				}
			}
		}
	}
	t.Logf("conformance: seed %s: %v", seed, counts)
}

func head(b []byte) []byte { return b[:min(len(b), 120)] }
