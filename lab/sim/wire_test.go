package sim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/tinylib/msgp/msgp"
)

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// decoded is an event as read back: by msgp's generic reader, which shares nothing with the writer.
type decoded map[string]any

// arrayFields are the positions of the array form (0.23).
var arrayFields = map[string][]string{
	"BlockStored": {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"},
	"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"type"},
}

func decodeBatch(t *testing.T, payload []byte) (events []decoded, rank int64) {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(payload)
	batch, ok := v.([]any)
	if err != nil || len(rest) != 0 || !ok || len(batch) != 3 {
		t.Fatalf("not a batch: %v %d bytes left, %T; got %v, %d, want no error, 0, true, 3", err, len(rest), v, ok, len(batch))
	}
	for _, e := range batch[1].([]any) {
		switch e := e.(type) {
		case map[string]any:
			events = append(events, e)
		case []any:
			d, fields := decoded{}, arrayFields[e[0].(string)]
			if len(fields) != len(e) {
				t.Fatalf("%v has %d fields, want %d", e[0], len(e), len(fields))
			}
			for i, f := range fields {
				d[f] = e[i]
			}
			events = append(events, d)
		}
	}
	return events, number(batch[2])
}

// number gives any of msgp's integer types.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		return int64(v)
	}
	return -1 << 62
}

func (d decoded) hashes() []uint64 {
	var list []uint64
	for _, h := range d["block_hashes"].([]any) {
		list = append(list, uint64(number(h)))
	}
	return list
}

func (d decoded) tokens() []uint32 {
	var list []uint32
	for _, v := range d["token_ids"].([]any) {
		list = append(list, uint32(number(v)))
	}
	return list
}

// subscriber is go-zeromq's SUB socket.
type subscriber struct {
	zmq4.Socket
	t *testing.T
}

func subscribe(t *testing.T, w *Worker, addr string) subscriber {
	t.Helper()
	sub := zmq4.NewSub(t.Context())
	t.Cleanup(func() { _ = sub.Close() })
	if err := sub.Dial(addr); err != nil {
		t.Fatal(err)
	}
	if err := sub.SetOption(zmq4.OptionSubscribe, "kv@"); err != nil {
		t.Fatal(err)
	}
	return subscriber{sub, t}
}

func (s subscriber) next() (topic string, seq uint64, payload []byte) {
	s.t.Helper()
	msg, err := s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	if len(msg.Frames) != 3 || len(msg.Frames[1]) != 8 {
		s.t.Fatalf("%d frames: %x", len(msg.Frames), msg.Frames)
	}
	return string(msg.Frames[0]), binary.BigEndian.Uint64(msg.Frames[1]), msg.Frames[2]
}

// replay asks from a sequence number and gives the messages, the end mark included, each frame in hex.
func replay(t *testing.T, addr string, from uint64) (messages [][]string) {
	t.Helper()
	dealer := zmq4.NewDealer(t.Context())
	defer dealer.Close()
	if err := dealer.Dial(addr); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from))); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := dealer.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var frames []string
		for _, f := range msg.Frames {
			frames = append(frames, hex.EncodeToString(f))
		}
		messages = append(messages, frames)
		if n := len(frames); n > 1 && frames[n-1] == "" && frames[n-2] == "ffffffffffffffff" {
			return messages
		}
	}
}

// Stored, extended, hit, evicted, cleared: what goes over the wire leads to the worker's truth.
func TestEventsTellTheTruth(t *testing.T) {
	for _, version := range []string{"0.23.0", "0.30.0", "0.32.0"} {
		t.Run(version, func(t *testing.T) {
			w := start(t, Config{Version: version, BlockSize: 4, Blocks: 16, Topic: "kv@test", BufferSteps: 1000})
			sub := subscribe(t, w, w.EventsAddr())
			eventually(t, "subscribed", func() bool { return w.Stats().Subscribed })
			for i := range 12 { // conversations that share a head and push each other out
				body := chat(words(9, "head")+words(3+i%5, string(rune('a'+i%4))), `,"max_tokens":9`)
				if status, answer := call(t, w, "POST", "/v1/chat/completions", body, "X-Session-Id", "s"); status != 200 {
					t.Fatalf("got %d %s, want 200", status, answer)
				}
				if i == 6 {
					if _, body := call(t, w, "POST", "/reset_prefix_cache", ""); !strings.Contains(body, "true") {
						t.Fatalf("got %q, want %q in it", body, "true")
					}
				}
			}
			index := map[uint64]int{} // copies by hash
			counts := map[string]int{}
			for seq := range uint64(w.Stats().Batches) {
				topic, got, payload := sub.next()
				if topic != "kv@test" || got != seq {
					t.Fatalf("topic %q, sequence %d, want %d", topic, got, seq)
				}
				events, rank := decodeBatch(t, payload)
				if rank != 0 {
					t.Errorf("rank %d, want 0", rank)
				}
				for _, e := range events {
					kind := e["type"].(string)
					counts[kind]++
					switch kind {
					case "BlockStored":
						hashes := e.hashes()
						if len(e.tokens()) != 4*len(hashes) || len(e["extra_keys"].([]any)) != len(hashes) || number(e["block_size"]) != 4 {
							t.Fatalf(`got %v, want len(e.tokens()) == 4*len(hashes), len(e["extra_keys"].([]any)) == len(hashes), number(e["block_size"]) == 4`,
								e)
						}
						if (e["session_id"] == "s") != (version >= "0.30") {
							t.Errorf("session %v", e["session_id"])
						}
						if parent := e["parent_block_hash"]; parent != nil && index[uint64(number(parent))] == 0 {
							t.Errorf("parent %v is not held", parent)
						}
						for _, h := range hashes {
							index[h]++
						}
					case "BlockRemoved":
						for _, h := range e.hashes() {
							index[h]--
							if index[h] < 0 {
								t.Errorf("%d removed once too often", h)
							}
						}
					case "AllBlocksCleared":
						clear(index)
					}
				}
			}
			truth := w.Blocks()
			for _, b := range truth {
				if index[b.Hash] != b.Copies {
					t.Errorf("block %d: got %d copies by events, %d in truth, want %d", b.Hash, index[b.Hash], b.Copies, b.Copies)
				}
				delete(index, b.Hash)
			}
			for h, n := range index {
				if n != 0 {
					t.Errorf("block %d: got %d copies by events, none in truth, want 0", h, n)
				}
			}
			if counts["BlockRemoved"] < 5 || counts["AllBlocksCleared"] != 1 || len(truth) < 5 {
				t.Errorf("too little happened: got %v, %d blocks held, want BlockRemoved at least 5, AllBlocksCleared 1, at least 5",
					counts, len(truth))
			}
			checkReplay(t, w, version)
		})
	}
}

// checkReplay compares the reply's shape with what the release sends.
func checkReplay(t *testing.T, w *Worker, version string) {
	n := uint64(w.Stats().Batches)
	all := replay(t, w.ReplayAddr(), 0)
	if uint64(len(all)) != n+1 {
		t.Fatalf("%d replies for %d batches: got %d, want %d", len(all), n, uint64(len(all)), n+1)
	}
	frames, mark := 3, []string{"", "ffffffffffffffff", ""}
	if version >= "0.26" {
		frames, mark = 4, []string{"", "", "ffffffffffffffff", ""}
	}
	for i, m := range all[:n] {
		want := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(i)))
		if len(m) != frames || m[0] != "" || m[frames-2] != want || frames == 4 && m[1] != hex.EncodeToString([]byte("kv@test")) {
			t.Errorf("reply %d: %q", i, m[:len(m)-1])
		}
	}
	if strings.Join(all[n], "|") != strings.Join(mark, "|") {
		t.Errorf("end mark %q, want %q", all[n], mark)
	}
	if tail := replay(t, w.ReplayAddr(), n-2); len(tail) != 3 {
		t.Errorf("%d replies for the last two batches, want 3", len(tail))
	}
	if beyond := replay(t, w.ReplayAddr(), 1_000_000); len(beyond) != 1 {
		t.Errorf("%d replies beyond the last batch, want 1", len(beyond))
	}
}

func TestReplayKeepsTheLastSteps(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 256, BufferSteps: 3})
	for i := range 8 {
		call(t, w, "POST", "/v1/chat/completions", chat(words(4, string(rune('a'+i))), `,"max_tokens":1`))
	}
	got := replay(t, w.ReplayAddr(), 0)
	if len(got) != 4 || got[0][2] != "0000000000000005" {
		t.Errorf("want batches 5 to 7 and the mark, got %d replies from %v", len(got), got[0][2])
	}
}

// Each rank has its own cache, ports and sequence numbers; a restart on the same ports begins at 0 again.
func TestRanksAndRestart(t *testing.T) {
	cfg := Config{BlockSize: 4, Blocks: 64, Ranks: 2, Topic: "kv@dp"}
	w := start(t, cfg)
	body := chat(words(9, "a"), `,"max_tokens":1`)
	for i := range 4 { // in turn, as they are equally loaded
		call(t, w, "POST", "/v1/chat/completions", body)
		if s := w.Stats(); s.CachedTokens != max(0, i-1)*8 {
			t.Errorf("request %d: got %d tokens cached in all, want %d", i, s.CachedTokens, max(0, i-1)*8)
		}
	}
	call(t, w, "POST", "/v1/chat/completions", chat(words(9, "b"), `,"max_tokens":1`), "X-data-parallel-rank", "1")
	byRank := map[int]int{}
	for _, b := range w.Blocks() {
		byRank[b.Rank]++
	}
	if byRank[0] != 2 || byRank[1] != 4 {
		t.Errorf("blocks by rank: got %v, want [0] 2, [1] 4", byRank)
	}
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(w.EventsAddr(), "tcp://"))
	_, sources := call(t, w, "GET", "/kv_event_sources", "")
	second := w.engines[1].pub.(*publisher).pub.Addr().String()
	if !strings.Contains(sources, `"endpoint":"tcp://*:`+port+`"`) || !strings.Contains(sources, second[strings.LastIndex(second, ":")+1:]) {
		t.Errorf("sources %s lack port %s or %s", sources, port, second)
	}
	if got := replay(t, "tcp://"+w.engines[1].pub.(*publisher).back.Addr().String(), 0); len(got) != 3 {
		t.Errorf("rank 1: got %d replies, want 3", len(got))
	}
	cfg.Listen, cfg.Events, cfg.Replay = w.Addr(), strings.TrimPrefix(w.EventsAddr(), "tcp://"), strings.TrimPrefix(w.ReplayAddr(), "tcp://")
	w.Close()
	w = start(t, cfg)
	sub := subscribe(t, w, w.EventsAddr())
	eventually(t, "subscribed", func() bool { _, heard := w.engines[0].pub.told(); return heard })
	call(t, w, "POST", "/v1/chat/completions", body, "X-data-parallel-rank", "0")
	if _, seq, _ := sub.next(); seq != 0 || w.Stats().CachedTokens != 0 {
		t.Errorf("after a restart: sequence %d, %d tokens cached, want 0, 0", seq, w.Stats().CachedTokens)
	}
}

// A prompt of whole blocks that is held whole: its last block is computed again, and lies there twice.
func TestSecondCopy(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64})
	for range 2 {
		call(t, w, "POST", "/v1/chat/completions", chat(words(8, "a"), `,"max_tokens":1`))
	}
	copies := 0
	for _, b := range w.Blocks() {
		copies += b.Copies
	}
	if s := w.Stats(); s.CachedTokens != 4 || s.Blocks != 2 || copies != 3 {
		t.Errorf("%d tokens cached, %d blocks, %d copies; want 4, 2, 3", s.CachedTokens, s.Blocks, copies)
	}
}

// A worker answers heartbeats, and a peer that talks nonsense or nothing harms nobody.
func TestHeartbeatAndBadPeers(t *testing.T) {
	w := start(t, Config{BlockSize: 4, Blocks: 64, Topic: "kv@test"})
	addr := strings.TrimPrefix(w.EventsAddr(), "tcp://")
	for _, bytes := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 64)} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte(bytes))
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL")
	ready := "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	ping := "\x04\x09\x04PING\x00\x0aab"
	if _, err := c.Write([]byte(string(greeting) + ready + "\x04\x0a\x09SUBSCRIBE" + strings.Repeat(ping, 20))); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("\x04\x07\x04PONGab", 20)
	var got strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(got.String(), want); {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q, want no error", err, got.String())
		}
		got.Write(buf[:n])
	}
	if !w.Stats().Subscribed {
		t.Error("the SUBSCRIBE command was not heard")
	}
	if _, err := c.Write([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff")); err != nil { // a frame of 2^64-1 bytes
		t.Fatal(err)
	}
	eventually(t, "the peer is dropped", func() bool { return !w.Stats().Subscribed })
}

// libzmq and msgspec, which vLLM's consumers in Python use, read live batches, heartbeats on, and the replay.
func TestConformancePyzmq(t *testing.T) {
	python := os.Getenv("SIGHTLINE_PYTHON")
	if python == "" {
		t.Skip("SIGHTLINE_PYTHON is not set: want a Python that has the packages pyzmq and msgspec")
	}
	const script = `
import sys, zmq, msgspec
ctx = zmq.Context()
sub = ctx.socket(zmq.SUB)
sub.setsockopt(zmq.HEARTBEAT_IVL, 20); sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 200); sub.setsockopt(zmq.RCVTIMEO, 10000)
monitor = sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
sub.subscribe("kv@"); sub.connect(sys.argv[1])
print("connected", flush=True)
def show(kind, seq, payload):
    ts, events, rank = msgspec.msgpack.decode(payload)
    print(kind, int.from_bytes(seq, "big"), rank, *[e["type"] + ":%d" % len(e["token_ids"]) for e in events], flush=True)
topic, seq, payload = sub.recv_multipart()
show(topic.decode(), seq, payload)
sys.stdin.readline() # 30 heartbeats later
topic, seq, payload = sub.recv_multipart()
show(topic.decode(), seq, payload)
print("disconnects", monitor.poll(0), flush=True)
dealer = ctx.socket(zmq.DEALER); dealer.setsockopt(zmq.RCVTIMEO, 10000); dealer.connect(sys.argv[2])
dealer.send_multipart([b"", (0).to_bytes(8, "big")])
while True:
    *_, seq, payload = dealer.recv_multipart()
    if not payload: break
    show("replay", seq, payload)
ctx.destroy(linger=0)
`
	w := start(t, Config{BlockSize: 4, Blocks: 64, Topic: "kv@py"})
	cmd := exec.Command(python, "-c", script, w.EventsAddr(), w.ReplayAddr())
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
	}
	expect("connected")
	eventually(t, "subscribed", func() bool { return w.Stats().Subscribed })
	call(t, w, "POST", "/v1/chat/completions", chat(words(9, "a"), `,"max_tokens":1`))
	expect("kv@py 0 0 BlockStored:8")
	time.Sleep(600 * time.Millisecond) // what is tested: a connection that lives through heartbeats
	_, _ = in.Write([]byte("\n"))
	call(t, w, "POST", "/v1/chat/completions", chat(words(13, "a"), `,"max_tokens":1`))
	expect("kv@py 1 0 BlockStored:4")
	expect("disconnects 0")
	expect("replay 0 0 BlockStored:8")
	expect("replay 1 0 BlockStored:4")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// FuzzReceive reads what a peer may send; whatever it is, reading ends.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x04\x01kv@\x04\x09\x04PING\x00\x0aab\x01\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x04\x0a\x09SUBSCRIBE\x04\x07\x06CANCEL"))
	f.Add([]byte("\x02\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add(append([]byte("\x06\x00\x00\x00\x00\x00\x00\x01\x00"), bytes.Repeat([]byte{0xff}, 256)...)) // a name of 255 bytes
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		defer theirs.Close()
		p := &peer{conn: ours, in: bufio.NewReader(bytes.NewReader(b)), topics: map[string]bool{}}
		defer ours.Close()
		for {
			frames, err := p.receive()
			if err != nil {
				return
			}
			for _, frame := range frames {
				if len(frame) > maxFrame {
					t.Fatalf("frame of %d bytes, want at most %d", len(frame), maxFrame)
				}
			}
		}
	})
}
