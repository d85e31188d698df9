package demo

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/bench"
)

// request is one of the load's requests.
type request struct {
	what     string // for the table
	image    int    // the image it shows, -1: none
	repeat   bool   // the image was sent before
	together bool   // sent 10 ms after the previous one, without waiting for its answer
	messages []any
}

// answer is what came back.
type answer struct {
	worker  int // index of the simulated worker
	prompt  int
	cached  int // as reported by the worker
	first   time.Duration
	decided decision
}

// decision is Sightline's own record, from its admin page.
type decision struct {
	Worker string `json:"worker"`
	Reason string `json:"reason"`
	Cached int    `json:"cached_tokens"`
	Prompt int    `json:"prompt_tokens"`
}

// images returns n different photographs of one size: 1280×720 JPEGs, from a fixed seed.
func images(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		img := image.NewRGBA(image.Rect(0, 0, 1280, 720))
		for range 60 {
			x, y, w, h := r.IntN(1280), r.IntN(720), 40+r.IntN(400), 40+r.IntN(300)
			c := color.RGBA{uint8(r.IntN(256)), uint8(r.IntN(256)), uint8(r.IntN(256)), 255}
			for yy := y; yy < min(y+h, 720); yy++ {
				for xx := x; xx < min(x+w, 1280); xx++ {
					img.SetRGBA(xx, yy, c)
				}
			}
		}
		var b bytes.Buffer
		_ = jpeg.Encode(&b, img, &jpeg.Options{Quality: 85}) // a bytes.Buffer does not fail
		out[i] = b.Bytes()
	}
	return out
}

func text(s string) any { return map[string]any{"type": "text", "text": s} }
func imagePart(url string) any {
	return map[string]any{"type": "image_url", "image_url": map[string]string{"url": url}}
}
func user(parts ...any) any   { return map[string]any{"role": "user", "content": parts} }
func says(role, s string) any { return map[string]any{"role": role, "content": s} }

const system = "You are the assistant of a picture archive. Answer briefly, name what you see, and say when you are not sure. " +
	"Never guess names of people. Describe colours before shapes, and shapes before places."

// mixed returns the load: text, images as data URLs, the same ones by URL, growing conversations; the same for every run.
func mixed(shots [][]byte, host string) (list []request) {
	data := func(i int) string { return "data:image/jpeg;base64," + base64.StdEncoding.EncodeToString(shots[i]) }
	link := func(i int, where string) string { return fmt.Sprintf("%s/%s/%d.jpg", host, where, i) }
	ask := func(i int, url, q string) []any { return []any{says("system", system), user(imagePart(url), text(q))} }
	add := func(what string, pic int, repeat bool, m []any) {
		list = append(list, request{what: what, image: pic, repeat: repeat, messages: m})
	}
	add("text", -1, false, []any{says("system", system), says("user", "What do you do?")})
	add("text", -1, false, []any{says("system", system), says("user", "Which picture formats do you know?")})
	// Three at once, then eight at once about the same images: with round robin three of the eight reach a worker with their
	// image.
	for i := range 3 {
		add(fmt.Sprintf("new image, %d of 3 at once", i+1), i, false, ask(i, data(i), "What is in this picture?"))
		list[len(list)-1].together = i > 0
	}
	for n, i := range []int{1, 0, 2, 1, 2, 0, 0, 1} {
		add(fmt.Sprintf("same image, %d of 8 at once", n+1), i, true, ask(i, data(i), fmt.Sprintf("Is number %d a square?", n+1)))
		list[len(list)-1].together = n > 0
	}
	for _, i := range []int{2, 0, 1} {
		add("same image, data URL", i, true, ask(i, data(i), "Which colour covers most of it?"))
	}
	add("new image of the same size", 3, false, ask(3, data(3), "What is in this picture?"))
	for _, i := range []int{1, 3, 0} {
		add("same image, by URL", i, true, ask(i, link(i, "a"), "How many rectangles are there?"))
	}
	add("same image, another URL", 1, true, ask(1, link(1, "b"), "And which one is in front?"))
	for _, i := range []int{4, 5} {
		add("new image, by URL", i, false, ask(i, link(i, "a"), "What is in this picture?"))
		add("same image, data URL", i, true, ask(i, data(i), "What is behind the largest one?"))
	}
	add("new image", 6, false, ask(6, data(6), "What is in this picture?"))
	add("same one, 10 ms later", 6, true, ask(6, data(6), "Is it a painting?"))
	list[len(list)-1].together = true
	// Two conversations, their turns interleaved; each starts with an image.
	talk := [][]any{ask(7, data(7), "Describe it, please."), ask(8, link(8, "a"), "Describe it, please.")}
	for turn := range 5 {
		for c := range talk {
			what := "conversation begins"
			if turn > 0 {
				what = fmt.Sprintf("conversation, turn %d", turn+1)
			}
			add(what, 7+c, turn > 0, append([]any(nil), talk[c]...))
			talk[c] = append(talk[c],
				says("assistant", strings.Repeat(fmt.Sprintf("There is a large shape number %d, in front of others. ", turn), 6)),
				says("user", fmt.Sprintf("Go on with part %d.", turn+2)))
		}
	}
	for _, i := range []int{3, 5, 2, 4} {
		add("same image, by URL", i, true, ask(i, link(i, "b"), "Would it fit on a postcard?"))
	}
	return list
}

// send sends one request through Envoy, streaming, and reads the answer to its end.
func send(ctx context.Context, l *lab.Lab, n int, r request) (a answer, err error) {
	body, err := json.Marshal(map[string]any{"model": lab.ModelName, "messages": r.messages, "max_tokens": 8,
		"user": fmt.Sprint("demo-", n), "stream": true, "stream_options": map[string]bool{"include_usage": true}})
	if err != nil {
		return a, err
	}
	got, err := bench.Ask(ctx, l.Do, l.URL, nil, body)
	return answer{prompt: got.Prompt, cached: got.Cached, first: got.First}, err
}
