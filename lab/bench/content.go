package bench

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/lab/fleetsim"
)

// words are about one token each in current models' vocabularies.
var words = strings.Fields("time year people way day man thing woman life child world school state family student " +
	"group country problem hand part " +
	"place case week company system program question work government number night point home water room mother area money " +
	"story fact month lot " +
	"right study book eye job word business issue side kind head house service friend father power hour game line end " +
	"member law car city name")

// writer writes a round's bodies. Equal segments become equal words, which differ between rounds.
type writer struct {
	model   string
	system  bool // a conversation's first segment is a system message; unknown for a trace
	answer  int
	salt    uint64
	images  *lru.Cache[uint64, string]
	mu      sync.Mutex
	answers map[*fleetsim.Request]string
}

func newWriter(model string, system bool, answer int, salt uint64) *writer {
	images, _ := lru.New[uint64, string](256) // fails for a size below 1
	return &writer{model: model, system: system, answer: answer, salt: salt, images: images, answers: make(map[*fleetsim.Request]string)}
}

// answered stores an answer for later turns.
func (w *writer) answered(r *fleetsim.Request, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[r] = text
}

// body returns a chat request with all turns up to r.
func (w *writer) body(r *fleetsim.Request) []byte {
	tokens := r.Answer.Tokens
	if w.answer > 0 {
		tokens = min(tokens, w.answer)
	}
	// texts and numbers always marshal
	body, _ := json.Marshal(map[string]any{"model": w.model, "messages": w.messages(r), "max_tokens": max(1, tokens), "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true}})
	return body
}

func (w *writer) messages(r *fleetsim.Request) (list []any) {
	said, from := 0, 0 // segments and tokens of the previous turns
	if r.Prev != nil {
		list = w.messages(r.Prev)
		w.mu.Lock()
		list = append(list, message("assistant", w.answers[r.Prev]))
		w.mu.Unlock()
		said, from = len(r.Prev.Prompt)+1, r.Prev.Input()+r.Prev.Answer.Tokens
	}
	mine := r.Prompt[said:]
	if r.Prev == nil && w.system {
		list = append(list, message("system", w.text(mine[0].ID, 0, mine[0].Tokens)))
		mine, from = mine[1:], mine[0].Tokens
	}
	return append(list, message("user", w.parts(r, mine, from)))
}

func message(role string, content any) any { return map[string]any{"role": role, "content": content} }

// parts converts segments, the first at position at of the prompt, to text parts and the images among them.
func (w *writer) parts(r *fleetsim.Request, segments []fleetsim.Segment, at int) (parts []any) {
	var text strings.Builder
	end := func() {
		if text.Len() > 0 {
			parts = append(parts, map[string]any{"type": "text", "text": text.String()})
		}
		text.Reset()
	}
	images := r.Images
	for _, s := range segments {
		for done := 0; done < s.Tokens; {
			for len(images) > 0 && images[0].Offset+images[0].Tokens <= at {
				images = images[1:]
			}
			n := s.Tokens - done
			switch {
			case len(images) > 0 && images[0].Offset <= at: // inside an image, which is emitted where it begins
				n = min(n, images[0].Offset+images[0].Tokens-at)
				if images[0].Offset == at {
					end()
					parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]string{"url": w.image(images[0])}})
				}
			case len(images) > 0:
				n = min(n, images[0].Offset-at)
				fallthrough
			default:
				text.WriteString(w.text(s.ID, done, done+n))
			}
			done, at = done+n, at+n
		}
	}
	end()
	return parts
}

// text returns a range of a segment's words.
func (w *writer) text(id uint64, from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		r := rand.NewPCG(id^w.salt, uint64(i))
		b.WriteByte(' ')
		b.WriteString(words[r.Uint64()%uint64(len(words))])
	}
	return b.String()
}

// image returns a JPEG as a data URL, of a size for which Qwen's models use about that many tokens (28 pixels square each).
func (w *writer) image(m fleetsim.Image) string {
	if url, ok := w.images.Get(m.ID); ok {
		return url
	}
	r := rand.New(rand.NewPCG(m.ID, w.salt))
	side := max(28, int(28*math.Sqrt(float64(m.Tokens))))
	img := image.NewRGBA(image.Rect(0, 0, side, side))
	for range 40 {
		x, y := r.IntN(side), r.IntN(side)
		c := color.RGBA{uint8(r.IntN(256)), uint8(r.IntN(256)), uint8(r.IntN(256)), 255}
		draw.Draw(img, image.Rect(x, y, x+side/8+r.IntN(side/3), y+side/8+r.IntN(side/3)), image.NewUniform(c), image.Point{}, draw.Src)
	}
	var b bytes.Buffer
	_ = jpeg.Encode(&b, img, &jpeg.Options{Quality: 85}) // a bytes.Buffer does not fail
	url := "data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
	w.images.Add(m.ID, url)
	return url
}
