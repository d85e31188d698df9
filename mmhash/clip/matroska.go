package clip

import (
	"encoding/binary"
	"math"

	"github.com/sightline-router/sightline/mmhash/isobox"
)

// Matroska and WebM (RFC 9559). The file gives a frame's duration and the total duration; like FFmpeg, this derives the frame
// count.

const (
	idSegment, idInfo, idTracks, idCluster = 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
	idScale, idDuration                    = 0x2AD7B1, 0x4489
	idTrack, idType, idVideo, idFrameTime  = 0xAE, 0x83, 0xE0, 0x23E383
	idPixelWidth, idPixelHeight            = 0xB0, 0xBA
	idBottom, idTop, idLeft, idRight       = 0x54AA, 0x54BB, 0x54CC, 0x54DD // cropped pixels
)

// element reads an element's header: its id, the offset of its content, and its size; an unknown size is -1.
func element(b []byte) (id uint64, head int, size int64, ok bool) {
	id, n, ok := vint(b, true)
	if !ok {
		return 0, 0, 0, false
	}
	v, k, ok := vint(b[n:], false)
	if !ok {
		return 0, 0, 0, false
	}
	size = int64(v)
	if v == 1<<(7*k)-1 {
		size = -1
	}
	return id, n + k, size, true
}

// vint reads a number whose leading bits encode its length. With marked, the marker bit stays in it.
func vint(b []byte, marked bool) (v uint64, n int, ok bool) {
	if len(b) == 0 || b[0] == 0 {
		return 0, 0, false
	}
	for n = 1; b[0]>>(8-n) == 0; n++ {
	}
	if len(b) < n {
		return 0, 0, false
	}
	v = uint64(b[0])
	if !marked {
		v &= 1<<(8-n) - 1
	}
	for _, c := range b[1:n] {
		v = v<<8 | uint64(c)
	}
	return v, n, true
}

// elements calls f for each element that is completely in b. With open, the last one may be truncated and masters of unknown size
// end with b.
func elements(b []byte, open bool, f func(id uint64, body []byte) (more bool, err error)) error {
	for n := 0; len(b) > 0; n++ {
		id, head, size, ok := element(b)
		if !ok || n == isobox.MaxBoxes {
			if open {
				return ErrTruncated
			}
			return ErrBroken
		}
		rest := b[head:]
		if size < 0 || size > int64(len(rest)) {
			if !open {
				return ErrBroken
			}
			if id != idSegment && id != idCluster {
				return ErrTruncated
			}
			size = int64(len(rest))
		}
		if more, err := f(id, rest[:size]); err != nil || !more {
			return err
		}
		b = rest[size:]
	}
	return nil
}

// matroskaEnds reports whether b contains everything before the first cluster.
func matroskaEnds(b []byte) (bool, error) {
	found := false
	err := elements(b, true, func(id uint64, body []byte) (bool, error) {
		if id != idSegment {
			return true, nil
		}
		return false, elements(body, true, func(id uint64, _ []byte) (bool, error) {
			found = id == idCluster
			return !found, nil
		})
	})
	return found, err
}

type mkvTrack struct {
	kind, width, height, frameTime uint64
	cropped                        bool
}

func matroska(b []byte) (info Info, err error) {
	scale, duration := uint64(1_000_000), 0.0
	var video mkvTrack
	tracks := 0
	err = elements(b, true, func(id uint64, body []byte) (bool, error) {
		if id != idSegment {
			return true, nil
		}
		return false, elements(body, true, func(id uint64, body []byte) (bool, error) {
			switch id {
			case idInfo:
				return true, elements(body, false, func(id uint64, body []byte) (bool, error) {
					switch id {
					case idScale:
						scale = number(body)
					case idDuration:
						duration = float(body)
					}
					return true, nil
				})
			case idTracks:
				return true, elements(body, false, func(id uint64, body []byte) (bool, error) {
					if id != idTrack {
						return true, nil
					}
					t, err := entry(body)
					if t.kind == 1 {
						tracks++
						video = t
					}
					return true, err
				})
			}
			return id != idCluster, nil
		})
	})
	switch {
	case err != nil && (err != error(ErrTruncated) || tracks == 0 || duration == 0):
		return info, err
	case tracks != 1:
		return info, ErrNoVideo
	case video.width == 0 || video.height == 0 || video.width > 1<<16 || video.height > 1<<16 || video.cropped:
		return info, ErrBroken
	case video.frameTime < 5_000_000 || video.frameTime > 1_000_000_000 || !(duration > 0) || scale == 0 || scale > 1e9:
		return info, ErrRate
	}
	fps := reduced(1_000_000_000, video.frameTime)
	// FFmpeg keeps a file's duration in microseconds; OpenCV rounds the product.
	seconds := math.Trunc(duration*float64(scale)/1000) / 1e6
	frames := math.Floor(seconds*fps + 0.5)
	if !(frames >= 1 && frames < math.MaxInt32) {
		return info, ErrBroken
	}
	return Info{Format: "matroska", Width: int(video.width), Height: int(video.height), Frames: int(frames), FPS: fps}, nil
}

func entry(b []byte) (t mkvTrack, err error) {
	err = elements(b, false, func(id uint64, body []byte) (bool, error) {
		switch id {
		case idType:
			t.kind = number(body)
		case idFrameTime:
			t.frameTime = number(body)
		case idVideo:
			return true, elements(body, false, func(id uint64, body []byte) (bool, error) {
				switch id {
				case idPixelWidth:
					t.width = number(body)
				case idPixelHeight:
					t.height = number(body)
				case idBottom, idTop, idLeft, idRight:
					t.cropped = t.cropped || number(body) != 0
				}
				return true, nil
			})
		}
		return true, nil
	})
	return t, err
}

// reduced returns FFmpeg's av_reduce to terms of at most 30000, which it applies to Matroska's rates, as a float.
func reduced(num, den uint64) float64 {
	const most = 30000
	n, d := num, den
	for a, b := n, d; ; a, b = b, a%b {
		if b == 0 {
			n, d = n/a, d/a
			break
		}
	}
	if n <= most && d <= most {
		return float64(n) / float64(d)
	}
	p0, q0, p1, q1 := uint64(0), uint64(1), uint64(1), uint64(0)
	for d != 0 {
		x := n / d
		rest := n - d*x
		p2, q2 := x*p1+p0, x*q1+q0
		if p2 > most || q2 > most {
			if p1 > 0 {
				x = (most - p0) / p1
			}
			if q1 > 0 {
				x = min(x, (most-q0)/q1)
			}
			if d*(2*x*q1+q0) > n*q1 {
				p1, q1 = x*p1+p0, x*q1+q0
			}
			break
		}
		p0, q0, p1, q1 = p1, q1, p2, q2
		n, d = d, rest
	}
	if q1 == 0 {
		return 0
	}
	return float64(p1) / float64(q1)
}

func number(b []byte) (v uint64) {
	if len(b) > 8 {
		return math.MaxUint64
	}
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

func float(b []byte) float64 {
	switch len(b) {
	case 4:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	case 8:
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	}
	return 0
}
