package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	zmq4 "github.com/go-zeromq/zmq4"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/lab/golden"
)

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func be(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// peer is a ZMTP 3.1 publisher or router made of plain bytes, so that a test can do what no library would.
type peer struct {
	net.Conn
	r *bufio.Reader
}

func (p peer) frame(flags byte, body string) {
	if len(body) > 255 {
		p.Write(append(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body))), body...))
		return
	}
	p.Write(append([]byte{flags, byte(len(body))}, body...))
}

func (p peer) message(frames ...string) {
	for i, f := range frames {
		more := byte(flagMore)
		if i == len(frames)-1 {
			more = 0
		}
		p.frame(more, f)
	}
}

func (p peer) read() (flags byte, body string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, "", err
	}
	b := make([]byte, head[1])
	_, err = io.ReadFull(p.r, b)
	return head[0], string(b), err
}

// listen serves one connection after the other with serve, which is called after the handshake.
func listen(t testing.TB, socket string, serve func(p peer)) (endpoint string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(greet(c, socket))
			c.Close()
		}
	}()
	return "tcp://" + l.Addr().String()
}

func greet(c net.Conn, socket string) peer {
	p := peer{c, bufio.NewReader(c)}
	greeting := [64]byte{0: 0xff, 9: 0x7f, 10: 3, 11: 1}
	copy(greeting[12:], "NULL")
	io.ReadFull(p.r, make([]byte, 64))
	c.Write(greeting[:])
	p.read() // their READY
	p.frame(flagCommand, "\x05READY\x0bSocket-Type\x00\x00\x00"+string(rune(len(socket)))+socket)
	return p
}

// collect runs a Sub in the background until the test ends.
func collect(t testing.TB, s *Sub) <-chan string {
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, func(m Message) { got <- fmt.Sprintf("%d %s", m.Seq, m.Payload) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return got
}

func expect(t testing.TB, got <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case g := <-got:
			if g != w {
				t.Fatalf("got %q, want %q", g, w)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q did not come", w)
		}
	}
}

// TestSubscribe tests a subscription, message shapes, commands between frames, and a connection that breaks and comes back.
func TestSubscribe(t *testing.T) {
	life := 0
	pongs := make(chan string, 1)
	endpoint := listen(t, "PUB", func(p peer) {
		life++
		if flags, body, _ := p.read(); flags != flagCommand || body != "\x09SUBSCRIBEkv@" {
			t.Errorf("subscription %#x %q, want %d, %q", flags, body, flagCommand, "\x09SUBSCRIBEkv@")
		}
		if life == 1 {
			p.message("kv@a", string(be(0)), "first")
			p.frame(flagCommand, "\x04PING\x00\x0acontext")
			_, pong, _ := p.read()
			pongs <- pong
			p.message("kv@a", "not eight", "malformed")
			p.message("one frame")
			p.message("kv@a", "\x01\x00\x00\x00\x00\x00\x00\x00", "little-endian")
			p.message("kv@a", string(be(1)), strings.Repeat("x", 300))
			return
		}
		p.message(string(be(2)), "no topic")
		p.message("kv@a", "more", string(be(3)), "")
		p.read() // until closed
	})
	var up, down, malformed sync.WaitGroup
	up.Add(2)
	down.Add(1)
	malformed.Add(3)
	forms := make(chan string, 3)
	s := &Sub{Endpoint: endpoint, Topic: "kv@", Up: up.Done, Down: func(err error) { down.Done() }, Malformed: func(form string) {
		forms <- form
		malformed.Done()
	}}
	got := collect(t, s)
	expect(t, got, "0 first", "1 "+strings.Repeat("x", 300), "2 no topic", "3 ")
	if pong := <-pongs; pong != "\x04PONGcontext" {
		t.Errorf("PONG %q, want %q", pong, "\x04PONGcontext")
	}
	up.Wait()
	down.Wait()
	malformed.Wait()
	for _, want := range []string{"messages of 3 frames with 9 bytes before the payload (want", "messages of 1 frame (want",
		"no big-endian sequence number"} {
		if form := <-forms; !strings.Contains(form, want) {
			t.Errorf("%q, want %q", form, want)
		}
	}
}

// TestHalfOpen checks that a peer that falls silent without closing is dropped after three times the pings' period, and that one that
// answers pings is kept. Its clock stands still while anything runs.
func TestHalfOpen(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				p := greet(theirs, "PUB")
				p.read() // subscription
				if !answers {
					io.Copy(io.Discard, p.r)
					return
				}
				for range 50 { // longer than the limit
					if _, body, err := p.read(); err != nil || !strings.HasPrefix(body, "\x04PING") {
						t.Errorf("got %q, %v, want a PING", body, err)
						return
					}
					p.frame(flagCommand, "\x04PONG")
				}
				p.message(string(be(7)), "alive")
			}()
			c, err := open(t.Context(), ours, "SUB", "PUB")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			began := time.Now()
			err = (&Sub{}).read(t.Context(), c, func(m Message) { got = append(got, fmt.Sprintf("%d %s", m.Seq, m.Payload)) })
			lasted := time.Since(began)
			if !answers && (err == nil || lasted <= 3*pingEvery || lasted > 4*pingEvery) {
				t.Errorf("a silent peer: got %v after %v, want an error after %v to %v", err, lasted, 3*pingEvery, 4*pingEvery)
			}
			if answers && (len(got) != 1 || got[0] != "7 alive" || lasted < 49*pingEvery/2) {
				t.Errorf("a peer that answers: got %q, the end %v after %v, want its message after 50 pings", got, err, lasted)
			}
		})
	}
}

// TestWrongPeers checks that what a hostile or wrong peer sends allocates no memory and ends in an error that says what is wrong.
func TestWrongPeers(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(p peer)
		want  string
	}{
		"frame of 2^60 bytes": {func(p peer) { p.Write([]byte{flagLong, 0x10, 0, 0, 0, 0, 0, 0, 0}) }, "message over"},
		"frames of 60 MB and 10 MB": {func(p peer) {
			p.Write([]byte{flagLong | flagMore, 0, 0, 0, 0, 0x03, 0xc0, 0, 0})
			io.Copy(p, io.LimitReader(zeros{}, 0x03c00000))
			p.Write([]byte{flagLong, 0, 0, 0, 0, 0, 0xa0, 0, 0})
		}, "message over"},
		"17 frames":      {func(p peer) { p.message(strings.Split(strings.Repeat("x", 17), "")...) }, "more than 16 frames"},
		"reserved flags": {func(p peer) { p.Write([]byte{0xf0, 0}) }, "flags"},
		"empty command":  {func(p peer) { p.frame(flagCommand, "") }, "malformed command"},
		"long PING":      {func(p peer) { p.frame(flagCommand, "\x04PING"+strings.Repeat("x", 30)) }, "malformed PING"},
		"ERROR":          {func(p peer) { p.frame(flagCommand, "\x05ERROR\x04busy") }, "peer closes"},
	} {
		endpoint := listen(t, "PUB", func(p peer) {
			p.read()
			c.serve(p)
			p.read()
		})
		ctx, cancel := context.WithCancel(deadline(t))
		var got error
		s := &Sub{Endpoint: endpoint, Down: func(err error) { got = err; cancel() }}
		s.Run(ctx, func(m Message) { t.Errorf("%s: message %v", name, m) })
		if got == nil || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, got, c.want)
		}
	}
	wrongType := listen(t, "ROUTER", func(p peer) { p.read() })
	ctx, cancel := context.WithCancel(deadline(t))
	var got error
	(&Sub{Endpoint: wrongType, Down: func(err error) { got = err; cancel() }}).Run(ctx, nil)
	if got == nil || !strings.Contains(got.Error(), "ROUTER socket, want PUB") {
		t.Errorf("a ROUTER dialled as PUB: got %v, want an error, %q in it", got, "ROUTER socket, want PUB")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestReplayForms reads replies in every form, as recorded from vLLM 0.23.0, 0.30.0, 0.32.0 (shapes) and read in SGLang's source.
func TestReplayForms(t *testing.T) {
	end := string(bytes.Repeat([]byte{0xff}, 8))
	for name, reply := range map[string][][]string{
		"with topic":    {{"", "kv@w", string(be(5)), "a"}, {"", "kv@w", string(be(6)), "b"}, {"", "", end, ""}},
		"without topic": {{"", string(be(5)), "a"}, {"", string(be(6)), "b"}, {"", end, ""}},
		"no delimiter":  {{string(be(5)), "a"}, {string(be(6)), "b"}, {end, ""}},
	} {
		endpoint := listen(t, "ROUTER", func(p peer) {
			f1, delimiter, _ := p.read()
			f2, from, _ := p.read()
			if f1 != flagMore || delimiter != "" || f2 != 0 || from != string(be(5)) {
				t.Errorf(`request %q %q, want f1 == flagMore, delimiter == "", f2 == 0, from == string(be(5))`, delimiter, from)
			}
			for _, m := range reply {
				p.message(m...)
			}
			p.read()
		})
		var got []string
		err := Replay(deadline(t), endpoint, 5, fair.Hold{}, func(m Message) error {
			got = append(got, fmt.Sprintf("%d%s", m.Seq, m.Payload))
			return nil
		})
		if err != nil || strings.Join(got, " ") != "5a 6b" {
			t.Errorf("%s: %v, %v; got %q, want no error, %q", name, got, err, strings.Join(got, " "), "5a 6b")
		}
	}
}

// TestConformanceReplies reads replies recorded from running vLLM 0.23.0 (three frames), 0.30.0 and 0.32.0 (four), as a DEALER
// got them.
func TestConformanceReplies(t *testing.T) {
	for _, name := range golden.Files(t, golden.Dir(t, "vllm", "sequences", "*.replay.json")) {
		var recorded struct {
			Replays []struct {
				Start       uint64 `json:"start_seq"`
				Replies     int
				First, Last [][]string
			}
		}
		golden.JSON(t, &recorded, name)
		for _, r := range recorded.Replays {
			messages := append(r.First, r.Last...)
			if r.Replies == 1 {
				messages = r.Last // only the end
			}
			endpoint := listen(t, "ROUTER", func(p peer) {
				p.read()
				p.read()
				for _, m := range messages {
					var frames []string
					for _, f := range m {
						raw, _ := hex.DecodeString(f)
						frames = append(frames, string(raw))
					}
					p.message(frames...)
				}
				p.read()
			})
			var seqs []uint64
			if err := Replay(deadline(t), endpoint, r.Start, fair.Hold{}, func(m Message) error {
				seqs = append(seqs, m.Seq)
				return nil
			}); err != nil {
				t.Errorf("%s from %d: got %v, want no error", name, r.Start, err)
			}
			if len(seqs) != len(messages)-1 || len(seqs) > 0 && seqs[0] != r.Start {
				t.Errorf("%s from %d: %d messages read of %d, numbers %v", name, r.Start, len(seqs), len(messages)-1, seqs)
			}
		}
	}
}

func TestReplayGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	endpoint := listen(t, "ROUTER", func(p peer) {
		p.read()
		p.read()
		cancel() // it has the whole request, and says nothing
		io.Copy(io.Discard, p.r)
	})
	if err := Replay(ctx, endpoint, 0, fair.Hold{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("silent publisher: got %v, want %v", err, context.Canceled)
	}
	endless := listen(t, "ROUTER", func(p peer) {
		p.read()
		p.read()
		for i := uint64(0); ; i++ {
			p.message(string(be(i)), "x")
			if i > 1000 {
				return
			}
		}
	})
	n := 0
	err := Replay(deadline(t), endless, 0, fair.Hold{}, func(m Message) error {
		n++
		if n == 10 {
			return io.ErrClosedPipe
		}
		return nil
	})
	if err != io.ErrClosedPipe || n != 10 {
		t.Errorf("after %d messages: %v, want %v, 10", n, err, io.ErrClosedPipe)
	}
}

func TestAddress(t *testing.T) {
	for _, c := range []struct {
		endpoint, host string
		rank           int
		want           string
	}{
		{"tcp://*:5557", "10.0.0.5", 0, "tcp://10.0.0.5:5557"},
		{"tcp://*:5557", "10.0.0.5", 3, "tcp://10.0.0.5:5560"},
		{"tcp://0.0.0.0:5557", "worker-1", 1, "tcp://worker-1:5558"},
		{"tcp://[::]:5557", "fd00::7", 1, "tcp://[fd00::7]:5558"},
		{"tcp://:::5557", "::1", 0, "tcp://[::1]:5557"},
		{"tcp://10.1.1.1:5557", "10.0.0.5", 2, "tcp://10.1.1.1:5559"},
		{"ipc:///tmp/kv", "", 0, "ipc:///tmp/kv"},
		{"ipc:///tmp/kv", "", 1, ""},
		{"inproc://kv", "", 0, ""},
		{"tcp://*:5557", "", 0, ""},
		{"tcp://host", "", 0, ""},
		{"tcp://host:0", "", 0, ""},
		{"tcp://host:65535", "", 1, ""},
		{"tcp://host:x", "", 0, ""},
	} {
		got, err := Address(c.endpoint, c.host, c.rank)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s for %s rank %d: %q, %v; want %q", c.endpoint, c.host, c.rank, got, err, c.want)
		}
	}
}

// TestAgainstGoZeromq tests with go-zeromq, which has ZMTP 3.0: no pings, subscriptions as messages. Over IPv6 too.
func TestAgainstGoZeromq(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		ctx := deadline(t)
		pub := zmq4.NewPub(ctx)
		defer pub.Close()
		if err := pub.Listen("tcp://" + host + ":0"); err != nil {
			if host == "[::1]" {
				t.Logf("no IPv6 here: %v", err)
				continue
			}
			t.Fatal(err)
		}
		router := zmq4.NewRouter(ctx)
		defer router.Close()
		if err := router.Listen("tcp://" + host + ":0"); err != nil {
			t.Fatal(err)
		}
		got := collect(t, &Sub{Endpoint: "tcp://" + pub.Addr().String(), Topic: "kv@"})
		first := ""
		for i := uint64(0); first == ""; i++ { // until the subscription has arrived
			pub.Send(zmq4.NewMsgFrom([]byte("other"), be(i), []byte("not for us")))
			pub.Send(zmq4.NewMsgFrom([]byte("kv@w"), be(i), []byte("batch")))
			select {
			case first = <-got:
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("no message came")
			}
		}
		if !strings.HasSuffix(first, " batch") {
			t.Errorf("got %q", first)
		}
		go func() {
			m, err := router.Recv()
			if err != nil {
				return
			}
			id := m.Frames[0]
			router.Send(zmq4.NewMsgFrom(id, nil, m.Frames[2], []byte("replayed")))
			router.Send(zmq4.NewMsgFrom(id, nil, bytes.Repeat([]byte{0xff}, 8), nil))
		}()
		n := 0
		err := Replay(ctx, "tcp://"+router.Addr().String(), 41, fair.Hold{}, func(m Message) error {
			n++
			if m.Seq != 41 || string(m.Payload) != "replayed" {
				t.Errorf("replayed %d %q: got %q, want 41, %q", m.Seq, m.Payload, string(m.Payload), "replayed")
			}
			return nil
		})
		if err != nil || n != 1 {
			t.Errorf("%d messages, %v, want no error, 1", n, err)
		}
	}
}

// TestConformanceLibzmq tests with libzmq itself, through pyzmq: heartbeats that demand PONGs within 300 ms, a restart on the
// same port, replay as vLLM serves it. Set SIGHTLINE_PYZMQ to a Python that has pyzmq.
func TestConformanceLibzmq(t *testing.T) {
	python := os.Getenv("SIGHTLINE_PYZMQ")
	if python == "" {
		t.Skip("SIGHTLINE_PYZMQ is not set: no libzmq to test against")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	start := func(life string) (stop func()) {
		cmd := exec.Command(python, "testdata/publisher.py", fmt.Sprint(port), life)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() { cmd.Process.Kill(); cmd.Wait() }
	}
	stop := start("one")
	defer func() { stop() }()
	var connects atomic.Int32
	s := &Sub{Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", port), Topic: "kv@", pingEvery: 100 * time.Millisecond,
		Up: func() { connects.Add(1) }}
	got := collect(t, s)
	await := func(suffix string) uint64 {
		for end := time.After(15 * time.Second); ; {
			select {
			case m := <-got:
				var seq uint64
				if strings.HasSuffix(m, suffix) {
					fmt.Sscan(m, &seq)
					return seq
				}
			case <-end:
				t.Fatalf("no message of life %s", suffix)
			}
		}
	}
	first := await("one")
	for await("one") < first+60 { // 3 s at 20 a second: ten heartbeats each way
	}
	if connects.Load() != 1 {
		t.Errorf("%d connections in one life: heartbeats are not answered, want 1", connects.Load())
	}
	var replayed []uint64
	if err := Replay(deadline(t), fmt.Sprintf("tcp://127.0.0.1:%d", port+1), 3, fair.Hold{}, func(m Message) error {
		replayed = append(replayed, m.Seq)
		return nil
	}); err != nil || len(replayed) < 50 || replayed[0] != 3 || replayed[49] != 52 {
		t.Errorf("replayed %v, %v, want no error, at least 50 of them, [0] 3, [49] 52", replayed, err)
	}
	stop()
	stop = start("two")
	await("two")
	if connects.Load() != 2 {
		t.Errorf("%d connections over two lives, want 2", connects.Load())
	}
}

// BenchmarkSub reads messages of 6 KB, a stored event of 64 blocks of 16 tokens, from a loopback socket, compared with go-zeromq.
func BenchmarkSub(b *testing.B) {
	payload := strings.Repeat("x", 6<<10)
	feed := func(p peer) {
		var one bytes.Buffer
		batch := peer{Conn: writer{&one}}
		for i := range uint64(64) {
			batch.message("kv@w", string(be(i)), payload)
		}
		p.read()
		for {
			if _, err := p.Write(one.Bytes()); err != nil {
				return
			}
		}
	}
	b.Run("ours", func(b *testing.B) {
		s := &Sub{Endpoint: listen(b, "PUB", feed)}
		ctx, cancel := context.WithCancel(context.Background())
		n := 0
		b.ReportAllocs()
		b.SetBytes(int64(len(payload)))
		s.Run(ctx, func(Message) {
			n++
			if n >= b.N {
				cancel()
			}
		})
	})
	b.Run("go-zeromq", func(b *testing.B) {
		sub := zmq4.NewSub(context.Background())
		defer sub.Close()
		if err := sub.Dial(listen(b, "PUB", feed)); err != nil {
			b.Fatal(err)
		}
		sub.SetOption(zmq4.OptionSubscribe, "")
		b.ReportAllocs()
		b.SetBytes(int64(len(payload)))
		for range b.N {
			if _, err := sub.Recv(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

type writer struct{ *bytes.Buffer }

func (writer) Close() error                       { return nil }
func (writer) LocalAddr() net.Addr                { return nil }
func (writer) RemoteAddr() net.Addr               { return nil }
func (writer) SetDeadline(time.Time) error        { return nil }
func (writer) SetReadDeadline(time.Time) error    { return nil }
func (writer) SetWriteDeadline(t time.Time) error { return nil }

// FuzzFrames checks that any bytes from a peer give an error, never a panic or unlimited memory.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x01\x04kv@w\x01\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x03abc"))
	f.Add([]byte("\x04\x08\x04PING\x00\x00x"))
	f.Add([]byte("\x02\x7f\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"))
	f.Add([]byte("\xff" + strings.Repeat("0", 255))) // a command name of 255 bytes
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{Conn: writer{new(bytes.Buffer)}, r: bufio.NewReader(bytes.NewReader(b))}
		for {
			parts, err := c.message()
			if err != nil {
				break
			}
			if m, ok := parse(parts); ok && len(m.Payload) > len(b) {
				t.Fatal("payload longer than the input")
			}
		}
		socketType(b)
		if cap(c.buf) > 4*len(b)+1<<21 {
			t.Fatalf("%d bytes kept for %d, want at most %d", cap(c.buf), len(b), 4*len(b)+1<<21)
		}
	})
}

// TestRoomForLargeMessages: a large message is read when there is room for it, which is there again when the next one begins.
func TestRoomForLargeMessages(t *testing.T) {
	room := fair.Shared(1<<20, 10)
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	c := &conn{Conn: a, r: bufio.NewReader(a), most: maxMessage, room: fair.Hold{Room: room, For: 1}, wait: t.Context()}
	large := make([]byte, keptBytes+1)
	go func() {
		for _, body := range [][]byte{large, large[:keptBytes], make([]byte, 800<<10)} {
			head := binary.BigEndian.AppendUint64([]byte{flagLong}, uint64(len(body)))
			_, _ = b.Write(append(head, body...))
		}
	}()
	for i, want := range []int64{keptBytes + 1, 0} {
		if _, err := c.message(); err != nil || room.Taken() != want || cap(c.buf) > 2*keptBytes {
			t.Fatalf("message %d: %d bytes taken, %v; want %d", i, room.Taken(), err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.wait = ctx
	room.TryTake(2, 500<<10)
	if _, err := c.message(); err == nil || room.Taken() != 500<<10 {
		t.Errorf("%v, %d bytes taken; want an error, since another has half of the room", err, room.Taken())
	}
}
