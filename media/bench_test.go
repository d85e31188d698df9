package media

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/highwayhash"
	"github.com/zeebo/blake3"
)

// body720p returns a request-sized data URL: 2.78 MB of PNG as 3.7 MB of base64, in pieces of 16 KB as gRPC delivers them.
func body720p(escaped bool) (pieces [][]byte, size int64) {
	file := make([]byte, 2_780_000)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range file {
		file[i] = byte(rng.Uint32())
	}
	copy(file, "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x05\x00\x00\x00\x02\xd0\x08\x02\x00\x00\x00")
	binary.BigEndian.PutUint32(file[29:], crc32.ChecksumIEEE(file[12:29]))
	copy(file[33:], "\x00\x40\x00\x00IDAT") // announces 4 MB of pixels, more than the file has
	text := "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
	if escaped {
		text = strings.ReplaceAll(text, "/", `\/`)
	}
	for p := []byte(text); len(p) > 0; p = p[min(16384-9, len(p)):] {
		pieces = append(pieces, p[:min(16384-9, len(p))])
	}
	return pieces, int64(len(text))
}

// BenchmarkIdentify fails, with SIGHTLINE_YARDSTICK set (make bench-media), if one core reads less than 3.5 GB/s of body.
func BenchmarkIdentify(b *testing.B) {
	for name, esc := range map[string]bool{"plain": false, "escaped": true} {
		b.Run(name, func(b *testing.B) {
			pieces, size := body720p(esc)
			b.SetBytes(size) // of body text
			b.ReportAllocs()
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				if f, err := Identify(DataURL(pieces)); err != nil || f.Width != 1280 {
					b.Fatalf("got %+v %v, want no error, Width 1280", f, err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			reached := float64(size) / float64(took[len(took)/2])
			b.ReportMetric(reached, "p50-GB/s")
			b.ReportMetric(3.5, "GB/s-asked-for")
			if reached < 3.5 && !esc && os.Getenv("SIGHTLINE_YARDSTICK") != "" {
				b.Errorf("%.2f GB/s of body, at least 3.5 asked for", reached)
			}
		})
	}
}

func TestIdentifyAllocs(t *testing.T) {
	pieces, _ := body720p(false)
	s := scratches.New().(*scratch) // not the pool, which may drop an entry at any time
	if n := testing.AllocsPerRun(20, func() { s.identify(DataURL(pieces)) }); n > 0 {
		t.Errorf("%v allocations per image, want 0", n)
	}
}

// BenchmarkRemembered measures recognizing a body text without decoding it, by hashes that an attacker cannot make collide,
// compared with decode and digest (Identify/plain). It is the reason why texts are not cached.
func BenchmarkRemembered(b *testing.B) {
	pieces, size := body720p(false)
	key := make([]byte, 32)
	b.Run("blake3-keyed", func(b *testing.B) {
		h, _ := blake3.NewKeyed(key)
		b.SetBytes(size)
		for b.Loop() {
			h.Reset()
			for _, p := range pieces {
				h.Write(p)
			}
			h.Sum(nil)
		}
	})
	b.Run("highwayhash-256", func(b *testing.B) {
		h, _ := highwayhash.New(key)
		b.SetBytes(size)
		for b.Loop() {
			h.Reset()
			for _, p := range pieces {
				h.Write(p)
			}
			h.Sum(nil)
		}
	})
}
