package e2e

import (
	"bytes"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sightline-router/sightline/envoy"
)

// A client sends its body in DATA frames of one byte, each of which Envoy passes on as a message of its own in full-duplex mode: the
// request is decided, and the connection to Sightline, with everybody's requests and logs, is not closed for it.
func TestBodyByteByByte(t *testing.T) {
	w := start(t, 1, func(o *envoy.Options) { o.FullDuplex = true })
	w.runKnown(map[string]any{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	var out, block bytes.Buffer
	f, enc := http2.NewFramer(&out, conn), hpack.NewEncoder(&block)
	out.WriteString(http2.ClientPreface)
	_ = f.WriteSettings()
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", chatPath},
		{"content-type", "application/json"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	text := chatOf(1000, 1) + strings.Repeat(" ", 30_000)
	for i := range len(text) {
		_ = f.WriteData(1, i == len(text)-1, []byte(text[i:i+1]))
	}
	w.envoy.Signal(syscall.SIGSTOP) // so that it reads all at once
	_, err = conn.Write(out.Bytes())
	w.envoy.Signal(syscall.SIGCONT)
	if err != nil {
		t.Fatal(err)
	}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	status := ""
	for status == "" {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := frame.(*http2.MetaHeadersFrame); ok {
			status = m.PseudoValue("status")
		}
	}
	if n := w.stat("cluster.sightline.http2.outbound_flood"); status != "200" || n != 0 {
		t.Errorf("status %s, the connection to Sightline was closed %d times, want %q, 0", status, n, "200")
	}
}
