package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	enc "encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/hostilebody"
	"github.com/sightline-router/sightline/lab/section"
)

// How much memory strangers can make Sightline use. Each attack meets a new process, as it is built for production, with a model of each
// engine, and comes over ext_proc itself: an Envoy before it would hold some of it back. Resident memory may at no time be more than the
// bytes that are on their way (bodies that were begun and are not answered, images and events that were sent), the index, and 200 MiB.
// Where that is not reached yet, an attack has a room of its own. make memory writes docs/reliability.md; with TIMES it sends so many
// times as much, and each kind of hostile body by itself.

const memoryRoom = 200 // MiB

// attack is one way to take memory.
type attack struct {
	name   string
	room   float64 // MiB; 0: memoryRoom
	engine string
	do     func(v *victim, times int)
}

// victim is the process that is attacked.
type victim struct {
	t     *testing.T
	pid   int
	admin string
	peers []extprocv3.ExternalProcessorClient // one connection each
	bus   string                              // the URL of its NATS server

	here, most atomic.Int64 // bytes on their way, and the most that were
	asked      atomic.Int64
	index      float64 // the most MiB that it had
}

// production is the binary without what tests are built with.
var production = sync.OnceValues(func() (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "production", "sightline")
	out, err := exec.Command("go", "build", "-tags", "fixed", "-o", bin, "../cmd/sightline").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

// startVictim starts a new process before one worker of an engine; events are the worker's, nil for none, and bus is the NATS server
// that it hears, "" for none.
func startVictim(t *testing.T, engine string, events map[string]any, bus string) *victim {
	t.Helper()
	bin, err := production()
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{t: t, admin: freeAddr(t), bus: bus}
	addr := freeAddr(t)
	model := map[string]any{"name": "m", "dir": absolute(t, modelDir), "engine": engine}
	if version := map[string]string{"sglang": "0.5.23", "trtllm": "1.3.0"}[engine]; version != "" {
		model["engine_version"] = version
	}
	if strings.Contains(t.Name(), "template") {
		model["trust_request_chat_template"] = true
		model["chat_template"] = "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] " +
			"}}{% endif %}{{ m.content|trim }}{% endfor %}"
	}
	worker := map[string]any{"name": "worker", "addr": sinkhole(t)}
	if events != nil {
		worker["events"] = events
	}
	keys := map[string]any{"listen": addr, "admin": v.admin, "log_level": "error", "fixed": unprobed("ready_after", "1s"), "drain": "0s",
		"models": []any{model}, "workers": []any{worker}, "media": map[string]any{"allow": []string{"127.0.0.0/8"}}}
	if bus != "" {
		keys["nats"] = map[string]any{"url": bus}
	}
	text, err := yaml.Marshal(keys)
	file := filepath.Join(t.TempDir(), "sightline.yaml")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "sightline", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
	v.pid = p.cmd.Process.Pid
	eventually(t, "Sightline serves", func() bool { _, err := lab.Get("http://" + v.admin + "/metrics"); return err == nil })
	for range 4 {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<24), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		v.peers = append(v.peers, extprocv3.NewExternalProcessorClient(conn))
	}
	return v
}

// counts says that n bytes more are on their way; the result says that they are not.
func (v *victim) counts(n int) (done func()) {
	now := v.here.Add(int64(n))
	for most := v.most.Load(); now > most && !v.most.CompareAndSwap(most, now); most = v.most.Load() {
	}
	return func() { v.here.Add(-int64(n)) }
}

// begin opens a stream with headers. duplex: its body comes in pieces.
func (v *victim) begin(ctx context.Context, duplex bool, path string, headers ...string) extprocv3.ExternalProcessor_ProcessClient {
	i := v.asked.Add(1)
	stream, err := v.peers[int(i)%len(v.peers)].Process(ctx)
	if err != nil {
		return nil
	}
	first := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}}}
	if duplex {
		first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_FULL_DUPLEX_STREAMED}
	}
	for pair := range slices.Chunk(append([]string{":method", "POST", ":path", path, "content-type", "application/json"}, headers...), 2) {
		all := first.GetRequestHeaders().Headers
		all.Headers = append(all.Headers, &corev3.HeaderValue{Key: pair[0], RawValue: []byte(pair[1])})
	}
	if stream.Send(first) != nil {
		return nil
	}
	return stream
}

// ask is one request; false if the stream broke before an answer came.
func (v *victim) ask(path, body string, headers ...string) bool {
	ctx, cancel := context.WithTimeout(v.t.Context(), 60*time.Second)
	defer cancel()
	defer v.counts(len(body))()
	stream := v.begin(ctx, false, path, headers...)
	if stream == nil {
		return false
	}
	if answer, err := stream.Recv(); err != nil || answer.GetImmediateResponse() != nil {
		return err == nil
	}
	_ = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}}})
	_, err := stream.Recv()
	return err == nil || errors.Is(err, io.EOF) // no body was asked for
}

// asks sends n requests, so many at once.
func (v *victim) asks(n, atOnce int, request func(i int) (path, body string)) {
	var all sync.WaitGroup
	var next, good atomic.Int64
	for range atOnce {
		all.Go(func() {
			for i := next.Add(1); int(i) <= n; i = next.Add(1) {
				if v.ask(request(int(i))) {
					good.Add(1)
				}
			}
		})
	}
	all.Wait()
	if got := good.Load(); int(got) != n {
		v.t.Errorf("%d of %d requests had an answer", got, n)
	}
}

// held is the number that the process's status has behind a name, in MiB.
func held(pid int, name string) float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(status), name+":")
	var kb float64
	_, _ = fmt.Sscan(after, &kb)
	return kb / 1024
}

// indexed notes how large the index is.
func (v *victim) indexed() {
	v.index = max(v.index, metricOf(v.t, v.admin, "sightline_index_bytes ", "")/(1<<20))
}

// chats are n bodies of a size, of hostile shapes in turn.
func chats(v *victim, shapes []hostilebody.Shape, n, size, atOnce int) {
	v.asks(n, atOnce, func(i int) (string, string) {
		s := shapes[i%len(shapes)]
		return cmp.Or(s.Path, "/v1/chat/completions"), s.Build(size, fmt.Sprintf("n%06d", i))
	})
}

// named are the shapes of these names.
func named(t *testing.T, names ...string) (found []hostilebody.Shape) {
	for _, s := range append(hostilebody.All(), hostilebody.Prose) {
		if slices.Contains(names, s.Name) {
			found = append(found, s)
		}
	}
	if len(found) != len(names) {
		t.Fatalf("found %d of %q, want %d", len(found), names, len(names))
	}
	return found
}

func bombs() (urls []string) {
	const side = 5600 // 31 M pixels, the most that is decoded
	paletted := image.NewPaletted(image.Rect(0, 0, side, side), color.Palette{color.Black, color.White})
	grey := image.NewGray(image.Rect(0, 0, side, side))
	deep := image.NewNRGBA64(image.Rect(0, 0, side, side))
	var files [7]bytes.Buffer
	best := &png.Encoder{CompressionLevel: png.BestCompression}
	_ = errors.Join(best.Encode(&files[0], paletted), best.Encode(&files[1], grey), best.Encode(&files[2], deep),
		jpeg.Encode(&files[3], grey, nil),
		jpeg.Encode(&files[4], image.NewYCbCr(image.Rect(0, 0, side, side), image.YCbCrSubsampleRatio444), nil),
		gif.Encode(&files[5], paletted, nil))
	_ = best.Encode(&files[6], image.NewPaletted(image.Rect(0, 0, 60_000, 60_000/8), paletted.Palette))
	for i := range files {
		kind := http.DetectContentType(files[i].Bytes())
		urls = append(urls, "data:"+kind+";base64,"+base64.StdEncoding.EncodeToString(files[i].Bytes()))
	}
	return urls
}

var attacks = []attack{
	{"every kind of hostile body, 1 MB, 32 at once", 250, "trtllm", func(v *victim, times int) {
		all := hostilebody.All()
		chats(v, all, len(all)*max(1, times*3/8), 1<<20, 32)
	}},
	{"texts of 32 MB, six at once", 250, "vllm", func(v *victim, times int) {
		chats(v, named(v.t, "prose", "letters at random", "marks out of order", "escaped letters"), 8*times, 32<<20, 6)
	}},
	{"data URLs of 48 MB, six at once", 0, "sglang", func(v *victim, times int) {
		data := strings.Repeat("iVBORw0KGgoA", 4<<20)
		v.asks(8*times, 6, func(i int) (string, string) {
			url := fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%08d`, i)
			return "/v1/chat/completions", hostilebody.Holding(url + data + `"}}`)
		})
	}},
	{"32 MB of small images, and of pieces, six at once", 0, "trtllm", func(v *victim, times int) {
		chats(v, named(v.t, "images", "data URLs of nothing", "messages", "keys of tool arguments", "unknown keys of an image",
			"base64 images in tool results"), 12*times, 32<<20, 6)
	}},
	{"images of 31 M pixels in a few KB", 0, "vllm", func(v *victim, times int) {
		urls := bombs()
		v.asks(24*times, 32, func(i int) (string, string) {
			var parts []string
			for k := range 8 {
				url := urls[(i+k)%len(urls)]
				own := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%012d", i*8+k)) // behind the image's end
				parts = append(parts, `{"type":"image_url","image_url":{"url":"`+strings.TrimRight(url,
					"=")[:len(strings.TrimRight(url, "="))/4*4]+own+`"}}`)
			}
			return "/v1/chat/completions", hostilebody.Holding(strings.Join(parts, ","))
		})
		time.Sleep(time.Duration(times) * 3 * time.Second) // they are decoded one after another
	}},
	{"made-up models, sessions, tenants and paths", 0, "vllm", func(v *victim, times int) {
		long := strings.Repeat("x", 200)
		v.asks(4000*times, 64, func(i int) (string, string) {
			return fmt.Sprint("/v1/", []string{"chat/completions", fmt.Sprint("made-up/", long, i)}[i%2]),
				fmt.Sprintf(`{"model":"made-up-%s%d","user":"%d%s","messages":[{"role":"user","content":"%d"}]}`, long, i, i, long, i)
		})
	}},
	{"conversations that never end, of a million tokens each", 0, "vllm", func(v *victim, times int) {
		chats(v, named(v.t, "token ids"), 30*times, 4<<20, 8)
	}},
	{"templates of clients that make lists and strings, and a text of </think>", 0, "vllm", func(v *victim, times int) {
		sources := []string{"{% set a = 'x' * 30000000 %}{{ a.split('x')|length }}",
			"{% set a = 'x ' * 15000000 %}{{ a.split()|length }}", "{{ ['x'] * 40000000 }}",
			"{% set a = 'x' * 30000000 %}{{ ([a] * 100000)|sort|length }}", "{{ ('\\n' * 30000000)|indent|length }}",
			"{{ ''|indent(2000000000, true)|length }}"}
		v.asks(51*times, 17, func(i int) (string, string) {
			return "/v1/chat/completions", `{"model":"m","chat_template":"` + sources[i%len(sources)] +
				`","messages":[{"role":"user","content":"` + fmt.Sprint(i) + `"}]}`
		})
		v.asks(4*times, 2, func(i int) (string, string) {
			return "/v1/chat/completions", hostilebody.Saying(fmt.Sprintf("%06d", i) + strings.Repeat("</think>", 4<<20))
		})
	}},
	{"headers of 60 KB, a thousand at once", 0, "vllm", func(v *victim, times int) {
		var headers []string
		for i := range 600 {
			headers = append(headers, fmt.Sprint("x-", i), strings.Repeat("h", 90))
		}
		v.manyHeld(1000*min(times, 4), 60<<10, false, headers...)
	}},
	{"4,000 streams that send no body", 0, "vllm", func(v *victim, times int) { v.manyHeld(4000*min(times, 4), 0, false) }},
	{"2,000 bodies of 64 KB that stop before their end", 0, "vllm", func(v *victim, times int) {
		v.manyHeld(2000*min(times, 4), 64<<10, true)
	}},
	{"a worker's events: messages of 15 MB, lists that claim to be endless", 0, "vllm", func(v *victim, times int) {
		time.Sleep(time.Duration(3+times) * time.Second)
	}},
	{"who may publish on NATS: messages of 8 MB and small ones, at all subjects", 0, "vllm", func(v *victim, times int) {
		conn, err := nats.Connect(v.bus)
		if err != nil {
			v.t.Error(err)
			return
		}
		defer conn.Close()
		const size = 8<<20 - 1000
		number := uint64(0)
		message := func(size int, rest string) []byte { // as an agent's begins
			number++
			head := append([]byte("S\x03\x00"), 1, 0, 0, 0, 0, 0, 0, 0)
			head = enc.LittleEndian.AppendUint64(head, number)
			return append(append(head, make([]byte, 24)...), strings.Repeat(rest, size/len(rest))...)
		}
		subjects := []string{"sightline.kv.worker.0", "sightline.kv.other.7", "sightline.beat.worker.0", "sightline.peer.x",
			"sightline.state.worker.0", "sightline.ask.worker.0"}
		for range 4 * times {
			for _, subject := range subjects {
				for _, rest := range []string{"\x01\x01hashhash", "\x01\xff\xff\xff\x0fhashhash", "\x81\x01\x10\x00", "\x00"} {
					err = errors.Join(err, conn.Publish(subject, message(size, rest)))
					for range 4 {
						err = errors.Join(err, conn.Publish(subject, message(1<<20-5000, rest))) // as much as is read
					}
				}
				for range 5000 {
					err = errors.Join(err, conn.Publish(subject, message(100, "\x01\x01hashhash")))
				}
				v.asked.Add(5020)
			}
			err = errors.Join(err, conn.FlushTimeout(time.Minute))
			if err != nil {
				v.t.Error(err)
				return
			}
		}
		time.Sleep(time.Second)
	}},
	{"an image host that sends without end", 0, "vllm", func(v *victim, times int) {
		chunk := make([]byte, 256<<10)
		host := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(rw, "\x89PNG\r\n\x1a\n")
			sent := 0
			done := func() {}
			for r.Context().Err() == nil && sent < 1<<30 {
				if _, err := rw.Write(chunk); err != nil {
					break
				}
				done()
				sent += len(chunk)
				done = v.counts(min(sent, 64<<20))
			}
			done()
		}))
		defer host.Close()
		v.asks(100*times, 16, func(i int) (string, string) {
			return "/v1/chat/completions", hostilebody.Holding(fmt.Sprintf(`{"type":"image_url","image_url":{"url":"%s/%d.png"}}`, host.URL, i))
		})
		time.Sleep(2 * time.Second)
	}},
	{"an image host's images of 8 MB, each another", 0, "vllm", func(v *victim, times int) {
		file := noise720(1)
		file = append(file, make([]byte, 8<<20-len(file))...)
		host := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			defer v.counts(len(file) + 8)()
			_, _ = rw.Write(file)
			_, _ = io.WriteString(rw, r.URL.Path)
		}))
		defer host.Close()
		v.asks(60*times, 8, func(i int) (string, string) {
			return "/v1/chat/completions", hostilebody.Holding(fmt.Sprintf(`{"type":"image_url","image_url":{"url":"%s/%07d"}}`, host.URL, i))
		})
		time.Sleep(time.Second)
	}},
}

// startBus starts a NATS server that lets everybody publish messages of 8 MB.
func startBus(t *testing.T) (url string) {
	bus, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, MaxPayload: 8 << 20,
		JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	bus.Start()
	t.Cleanup(func() { bus.Shutdown(); bus.WaitForShutdown() })
	if !bus.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS does not start")
	}
	return bus.ClientURL()
}

// manyHeld opens n streams, sends size bytes of a body on each where it is to come in pieces, and holds them all.
func (v *victim) manyHeld(n, size int, pieces bool, headers ...string) {
	ctx, cancel := context.WithCancel(v.t.Context())
	defer cancel()
	piece := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(hostilebody.Prose.Build(size, "")[:size])}}}
	for range n {
		v.counts(size)
		stream := v.begin(ctx, pieces, "/v1/chat/completions", headers...)
		if stream == nil || pieces && stream.Send(piece) != nil {
			v.t.Error("a stream was not taken")
			return
		}
	}
	eventually(v.t, "all streams are there", func() bool {
		return metricOf(v.t, v.admin, "sightline_extproc_streams_total", "") >= float64(n)
	})
	time.Sleep(time.Second)
}

// serve is a worker that publishes what takes memory to read, to everybody who subscribes, as long as they listen.
func (p *hostilePublisher) serve(conn net.Conn) {
	defer conn.Close()
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	_, err := conn.Write(greeting)
	if err == nil {
		_, err = io.ReadFull(conn, greeting)
	}
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	if err == nil {
		_, err = fmt.Fprintf(conn, "\x04%c%s", len(ready), ready)
	}
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for i := 0; err == nil; i++ {
		payload := p.payloads[i%len(p.payloads)]
		head := append([]byte("\x01\x00\x01\x08"), enc.BigEndian.AppendUint64(nil, uint64(p.number.Add(1)))...)
		head = enc.BigEndian.AppendUint64(append(head, 2), uint64(len(payload)))
		_, err = conn.Write(head)
		if err == nil {
			_, err = conn.Write(payload)
		}
		p.sent.Add(1)
		if i%len(p.payloads) == len(p.payloads)-1 {
			_, _ = conn.Write(append([]byte{2}, bytes.Repeat([]byte{0x7f}, 8)...)) // a frame that says it is endless
			return
		}
	}
}

type hostilePublisher struct {
	payloads     [][]byte
	number, sent atomic.Int64
}

// hostileEvents are vLLM's events of 15 MB: lists of the smallest things, as large as a message may be.
func hostileEvents() [][]byte {
	const size = 15 << 20
	stored := func(hashes, tokens, keys []byte) []byte { // [time, [["BlockStored", hashes, parent, tokens, 16, nil, "GPU", nil, keys]], 0]
		b := append([]byte("\x93\xcb\x41\xd9\x00\x00\x00\x00\x00\x00\x91\x99\xabBlockStored"), hashes...)
		b = append(append(append(b, 0xc0), tokens...), 0x10, 0xc0)
		return append(append(append(b, "\xa3GPU\xc0"...), keys...), 0)
	}
	array := func(claimed int, body []byte) []byte {
		return append(enc.BigEndian.AppendUint32([]byte{0xdd}, uint32(claimed)), body...)
	}
	ones := bytes.Repeat([]byte{1}, size)
	events := bytes.Repeat([]byte("\x92\xacBlockRemoved\x91\x01"), size/16)
	return [][]byte{
		stored(array(1, []byte{7}), array(size, ones), []byte{0xc0}),
		stored(array(size, ones), []byte{0x90}, []byte{0xc0}),
		stored(array(1<<32-1, ones[:1000]), []byte{0x90}, []byte{0xc0}),
		stored(array(size/20, ones[:size/20]), array(size/20*16, ones[:size/20*16]), array(size/20, bytes.Repeat([]byte{0x90}, size/20))),
		append(append([]byte("\x93\xcb\x41\xd9\x00\x00\x00\x00\x00\x00"), array(len(events)/16, events)...), 0),
		bytes.Repeat([]byte{0x91}, size), // depth
		ones,
	}
}

func TestMemory(t *testing.T) {
	doc, only, tried := os.Getenv("SIGHTLINE_MEMORY"), os.Getenv("SIGHTLINE_MEMORY_ONLY"), attacks
	times, err := strconv.Atoi(os.Getenv("SIGHTLINE_MEMORY_TIMES"))
	times = max(times, 1)
	if err == nil && times > 1 {
		for _, s := range append(hostilebody.All(), hostilebody.Prose) {
			tried = append(tried, attack{"bodies of 1 MB, 32 at once: " + s.Name, 500, "vllm", func(v *victim, _ int) {
				chats(v, []hostilebody.Shape{s}, 96, 1<<20, 32)
			}},
				attack{"bodies of 16 MB, six at once: " + s.Name, 500, "vllm", func(v *victim, _ int) {
					chats(v, []hostilebody.Shape{s}, 9, 16<<20, 6)
				}})
		}
	}
	began := time.Now()
	const heading = "| attack | MiB on their way | MiB resident, at most | beyond these and the index |\n|---|---|---|---|\n"
	type measured struct {
		row  string
		over float64
	}
	var rows []measured
	for _, a := range tried {
		if !strings.Contains(a.name, only) {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			var events map[string]any
			hostile := &hostilePublisher{}
			if strings.Contains(a.name, "events") {
				lis := listen(t)
				t.Cleanup(func() { lis.Close() })
				hostile.payloads = hostileEvents()
				go func() {
					for conn, err := lis.Accept(); err == nil; conn, err = lis.Accept() {
						go hostile.serve(conn)
					}
				}()
				events = map[string]any{"zmq": "tcp://" + lis.Addr().String()}
			}
			bus := ""
			if strings.Contains(a.name, "NATS") {
				bus, events = startBus(t), map[string]any{"nats": true}
			}
			v := startVictim(t, a.engine, events, bus)
			if events != nil {
				v.counts(64 << 20) // as many may wait to be read
			}
			before := held(v.pid, "VmRSS")
			start := time.Now()
			a.do(v, times)
			v.indexed()
			peak, bodies := held(v.pid, "VmHWM"), float64(v.most.Load())/(1<<20)
			over := peak - bodies - v.index
			row := fmt.Sprintf("| %s | %.0f | %.0f | %.0f |", a.name, bodies, peak, over)
			t.Logf("%s %d sent, index %.1f, started with %.0f, %v", row, v.asked.Load()+hostile.sent.Load(), v.index, before,
				time.Since(start).Round(time.Millisecond))
			rows = append(rows, measured{row, over})
			if room := cmp.Or(a.room, memoryRoom); over > room || before == 0 {
				t.Errorf("%.0f MiB resident, with %.0f of bodies and %.1f of index: %.0f more, want %.0f at most", peak, bodies, v.index, over, room)
			}
		})
	}
	if doc != "" && only == "" && !t.Failed() {
		slices.SortStableFunc(rows, func(a, b measured) int { return cmp.Compare(b.over, a.over) })
		var worst []string
		for _, r := range rows[:4] {
			worst = append(worst, r.row)
		}
		section.Write(t, doc, "memory", fmt.Sprintf("%v on %d cores, the worst four of %d:\n\n%s%s",
			time.Since(began).Round(time.Second), runtime.NumCPU(), len(rows), heading, strings.Join(worst, "\n")))
	}
}
