//go:build unix

package pixels

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	encoder "image/jpeg"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// photo returns a 1080p image with details like those of photographs: smooth areas, edges, fine grain.
func photo() image.Image {
	r := rand.New(rand.NewPCG(1, 2))
	m := image.NewRGBA(image.Rect(0, 0, 1920, 1080))
	for y := range 1080 {
		for x := range 1920 {
			fx, fy := float64(x), float64(y)
			v := 128 + 60*math.Sin(fx/90+fy/150) + 30*math.Sin(fx*fy/20000) + r.NormFloat64()*(2+8*math.Abs(math.Sin(fx/400)))
			u := 40 * math.Sin(fy/70)
			if (x/120+y/90)%5 == 0 {
				v = 255 - v
			}
			c := func(v float64) uint8 { return uint8(min(max(v, 0), 255)) }
			m.SetRGBA(x, y, color.RGBA{c(v + u), c(v), c(v - u), 255})
		}
	}
	return m
}

// BenchmarkJPEG decodes 1080p files. If SIGHTLINE_PYTHON is a Python with Pillow 13.0.0, Pillow makes the files (4:2:0, 4:4:4,
// progressive), both results are compared byte for byte, and the ratio of the best times is reported: processor time of one thread,
// so that other load on the machine hardly matters.
func BenchmarkJPEG(b *testing.B) {
	var src bytes.Buffer
	if err := encoder.Encode(&src, photo(), &encoder.Options{Quality: 85}); err != nil {
		b.Fatal(err)
	}
	python := os.Getenv("SIGHTLINE_PYTHON")
	if python == "" {
		b.Run("4:2:0", func(b *testing.B) { bench(b, src.Bytes(), nil) })
		return
	}
	dir := b.TempDir()
	at := filepath.Join(dir, "src.jpg")
	if err := os.WriteFile(at, src.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	const script = `
import sys, time, io, hashlib
from PIL import Image
src, out, options = sys.argv[1:]
Image.open(src).convert("RGB").save(out, **eval(options))
data = open(out, "rb").read()
def once():
    t = time.thread_time()
    p = Image.open(io.BytesIO(data)).convert("RGB")
    p.load()
    return time.thread_time() - t, p
best = min(once()[0] for _ in range(40))
print(best * 1e3, hashlib.sha256(once()[1].tobytes()).hexdigest())`
	for _, c := range [][2]string{
		{"4:2:0", "dict(quality=85)"}, {"4:4:4", "dict(quality=90, subsampling=0)"}, {"progressive", "dict(quality=85, progressive=True)"},
	} {
		b.Run(c[0], func(b *testing.B) {
			out := filepath.Join(dir, "out.jpg")
			pillow := func() (ms float64, digest string) {
				text, err := exec.Command(python, "-c", script, at, out, c[1]).Output()
				if err != nil {
					b.Fatal(err)
				}
				if _, err := fmt.Sscan(string(text), &ms, &digest); err != nil {
					b.Fatal(err)
				}
				return ms, digest
			}
			ms, digest := pillow()
			file, err := os.ReadFile(out)
			if err != nil {
				b.Fatal(err)
			}
			p, err := Decode(file)
			if err != nil || sum(p.Pix) != digest {
				b.Fatalf("other pixels than Pillow's:  %v, want no error, sum(p.Pix) == digest", err)
			}
			bench(b, file, &ms)
		})
	}
}

func bench(b *testing.B, file []byte, pillow *float64) {
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := math.Inf(1)
	for b.Loop() {
		start := processor(b)
		if _, err := Decode(file); err != nil {
			b.Fatal(err)
		}
		best = min(best, processor(b)-start)
	}
	b.ReportMetric(best, "best-ms")
	b.ReportMetric(1920*1080/1e3/best, "Mpixel/s")
	b.ReportMetric(float64(len(file))/1e3, "file-KB")
	if pillow != nil {
		b.ReportMetric(*pillow, "pillow-ms")
		b.ReportMetric(best / *pillow, "x-pillow")
		b.ReportMetric(2, "x-asked-for")
		if os.Getenv("SIGHTLINE_YARDSTICK") != "" && best > 2**pillow {
			b.Errorf("%.2f times Pillow's time, at most 2 asked for", best / *pillow)
		}
	}
}

// processor returns the process's CPU time in milliseconds, including the garbage collector's.
func processor(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}
