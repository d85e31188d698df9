package pixels

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sightline-router/sightline/mmhash/media/header"
)

func golden(t testing.TB, path ...string) []byte {
	t.Helper()
	root := os.Getenv("SIGHTLINE_GOLDEN")
	if root == "" {
		t.Skip("SIGHTLINE_GOLDEN is not set: the pictures are outside the repository")
	}
	b, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// TestConformanceImages: every picture in every way that engines make it RGB, against Pillow 13.0.0.
func TestConformanceImages(t *testing.T) {
	for _, dir := range []string{"jpg", "png", "gif", "webp"} {
		var plain map[string]struct {
			RGB string `json:"rgb_sha256"`
		}
		var variants map[string]struct {
			Mode string
			Size [2]int
			Exif string `json:"exif_rgb_sha256"`
			Box  [2]int `json:"exif_size"`
			One  string `json:"white_rgb_sha256"`
			All  string `json:"white_via_rgba_rgb_sha256"`
		}
		for f, v := range map[string]any{"expected.json": &plain, "variants.json": &variants} {
			if err := json.Unmarshal(golden(t, "images", dir, f), v); err != nil {
				t.Fatal(err)
			}
		}
		n := map[string]int{}
		for f, w := range plain {
			v, file := variants[f], golden(t, "images", dir, f)
			if v.One == "" {
				v.One = w.RGB
			}
			if v.All == "" {
				v.All = v.One
			}
			for rule, want := range []string{w.RGB, v.One, v.All} {
				p, err := Decode(file, Rule(rule), Limits{})
				if header.KindOf(err) == header.Unsupported {
					n["not read"]++
					t.Logf("%s: %v", f, err)
					break
				}
				if err != nil {
					t.Errorf("%s: %v", f, err)
					break
				}
				if p.Mode != v.Mode || p.W != v.Size[0] || p.H != v.Size[1] {
					t.Errorf("%s: %s %d×%d, Pillow has %s %v", f, p.Mode, p.W, p.H, v.Mode, v.Size)
				}
				if sum(p.Pix) != want {
					t.Errorf("%s rule %d: other pixels than Pillow's", f, rule)
					continue
				}
				n[[]string{"plain", "white", "all white"}[rule]]++
				if rule > 0 || v.Exif == "" {
					continue
				}
				if p = p.Turn(); sum(p.Pix) != v.Exif || p.W != v.Box[0] || p.H != v.Box[1] {
					t.Errorf("%s: turned otherwise than by Pillow", f)
				}
				n["turned"]++
			}
		}
		t.Logf("%s: %d files, %v", dir, len(plain), n)
	}
}
