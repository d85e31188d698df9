package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	endian "encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// clientAt returns a client with an address of its own.
func clientAt(t *testing.T, ip string) *http.Client {
	t.Helper()
	from := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext}
	t.Cleanup(from.CloseIdleConnections)
	return &http.Client{Transport: from}
}

// flatPNG returns an image of many pixels in few bytes, a different file for each number.
func flatPNG(t *testing.T, side int) func(number int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewNRGBA(image.Rect(0, 0, side, side))); err != nil {
		t.Fatal(err)
	}
	file := b.Bytes()
	return func(number int) string {
		note := endian.BigEndian.AppendUint32([]byte("tEXtn\x00"), uint32(number))
		chunk := append(endian.BigEndian.AppendUint32(nil, uint32(len(note)-4)), note...)
		chunk = endian.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(note))
		return "data:image/png;base64," + base64.StdEncoding.EncodeToString(slices.Concat(file[:len(file)-12], chunk, file[len(file)-12:]))
	}
}

// TestClientsShareTheDecoder: a client that fills TensorRT-LLM's queue of images to decode, with images of many pixels, does not
// keep another's image from being named: Envoy tells whose request it is, whatever the clients' headers say.
func TestClientsShareTheDecoder(t *testing.T) {
	t.Parallel()
	large := flatPNG(t, 3000)
	l := startEngines(t, sim.TRTLLM, 32, func(o *lab.Options) {
		o.Workers = 1
		o.Sim = func(_ int, c *sim.Config) { c.BlockSize = 32 }
		read := o.Prompts
		o.Prompts = func(ctx context.Context, path string, _ []byte) ([]sim.Prompt, error) {
			body, _ := json.Marshal(request("", "What is it?")) // no images, so that no event tells how the worker names them
			return read(ctx, path, body)
		}
	})
	hostile, victim := clientAt(t, "127.0.0.2"), clientAt(t, "127.0.0.3")
	send := func(from *http.Client, user, url string) {
		t.Helper()
		body := request(user, "What is it?", imagePart(url, nil))
		body["model"], body["max_tokens"] = lab.ModelName, 1
		raw, _ := json.Marshal(body)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, l.URL+"/v1/chat/completions", bytes.NewReader(raw))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Forwarded-For", "127.0.0.3") // would make both one client
		req.Header.Set("X-Sightline-Client", "127.0.0.3")
		resp, err := from.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Errorf("status %d: %s, want %d", resp.StatusCode, b, http.StatusOK)
		}
	}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() { send(hostile, "hostile", large(i)) })
	}
	all.Wait()
	named := func(from *http.Client, user, url string) bool {
		send(from, user, url)
		return lastDecision(t, l).Get("why").Str != "media name not computed yet: pixels are decoded beside the requests"
	}
	mine := pngURL(41)
	eventually(t, "the other client's image to be named", func() bool { return named(victim, "victim", mine) })
	waiting := 0
	for i := range 16 {
		if !named(hostile, "hostile", large(32+i)) {
			waiting++
		}
	}
	if waiting < 12 { // 48 of its 64 got a place; few had their turn
		t.Errorf("only %d of 16 of the hostile client's images still waited when the other client's was named, want at least 12", waiting)
	}
}
