package e2e

import (
	"bytes"
	bigendian "encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/tidwall/gjson"
	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// teller is a stub worker before a real Envoy and the product, and the publisher of its events, which says what a test wants.
type teller struct {
	*world
	pub   zmq4.Socket
	admin string
	seq   uint64
}

const tellerBlock = 16

// tell starts one whose worker is at a host. events are its configuration's; in it pub is where it publishes, if it listens.
func tell(t *testing.T, host string, model, events map[string]any) *teller {
	t.Helper()
	lis, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skip("this machine has no such address: ", err)
	}
	w := startWorkerOn(t, lis, lis.Addr().String())
	f := &teller{world: start(t, 0, func(o *envoy.Options) {
		o.Workers = []string{w.addr}
	}), pub: zmq4.NewPub(t.Context()), admin: freeAddr(t)}
	t.Cleanup(func() { f.pub.Close() })
	if events["zmq"] == nil {
		if err := f.pub.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		events["zmq"] = "tcp://" + f.pub.Addr().String()
	}
	m := map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir), "block_size": tellerBlock}
	for k, v := range model {
		m[k] = v
	}
	// what counts is what events tell
	f.runProduct(map[string]any{"admin": f.admin, "models": []any{m}, "fixed": unprobed("predicted_ttl", "100ms", "ready_after", "1s"),
		"workers": []any{map[string]any{"name": "w", "addr": w.addr, "model": lab.ModelName, "events": events}}})
	return f
}

// stored are the blocks from from on, so many, of the prompt of a number; parent is told, "" for none.
func stored(prompt, from, n int, parent any) map[string]any {
	var hashes []any
	for i := range n {
		hashes = append(hashes, uint64(prompt*1000+from+i))
	}
	return map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
		"token_ids": tokens(prompt, from, n), "block_size": tellerBlock}
}

func tokens(prompt, from, blocks int) (ids []any) {
	for i := range blocks * tellerBlock {
		ids = append(ids, prompt*1000+from*tellerBlock+i)
	}
	return ids
}

func payload(t *testing.T, events ...any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, []any{1.5, events, 0})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func message(seq uint64, payload []byte) zmq4.Msg {
	return zmq4.NewMsgFrom([]byte("kv"), bigendian.BigEndian.AppendUint64(nil, seq), payload)
}

// publish has a batch heard: it is sent until it is, for a subscription comes when it comes, and twice is once, by its number.
func (f *teller) publish(events ...any) {
	f.t.Helper()
	m := message(f.seq, payload(f.t.(*testing.T), events...))
	f.seq++
	eventually(f.t, fmt.Sprint("batch ", f.seq, " is heard"), func() bool {
		if f.count(`what="batches"`) >= float64(f.seq) {
			return true
		}
		_ = f.pub.Send(m)
		return false
	})
}

func (f *teller) count(what string) float64 {
	return metricOf(f.t.(*testing.T), f.admin, "sightline_events_total", what)
}

func (f *teller) held() int64 {
	rows, _ := lab.Get("http://" + f.admin + "/workers")
	return gjson.GetBytes(rows, "0.blocks_held").Int()
}

// decides asks with four blocks of a prompt and a little more, and gives the decision.
func (f *teller) decides(prompt int) (reason string, cached int64) {
	f.t.Helper()
	body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "prompt": append(tokens(prompt, 0, 4), 7), "max_tokens": 1})
	if r := f.send(f.client, http.MethodPost, "/v1/completions", string(body),
		http.Header{"Content-Type": {"application/json"}}); r.status != http.StatusOK {
		f.t.Fatalf("%d %s %v", r.status, r.body, r.err)
	}
	rows, _ := lab.Get("http://" + f.admin + "/decisions?n=1")
	d := gjson.GetBytes(rows, "0")
	return d.Get("reason").Str, d.Get("cached_tokens").Int()
}

func (f *teller) want(prompt int, reason string, cached int64) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("prompt %d: %s, %d tokens cached", prompt, reason, cached), func() bool {
		r, c := f.decides(prompt)
		if r == reason && c == cached {
			return true
		}
		time.Sleep(150 * time.Millisecond) // predictions end
		return false
	})
}

// SGLang tells of a block that it has already once more, and of its removal once: nothing is believed of it then.
func TestSGLangLeavesNoGhosts(t *testing.T) {
	t.Parallel()
	f := tell(t, "127.0.0.1", map[string]any{"engine": "sglang", "dir": qwen3(t)}, map[string]any{})
	f.publish(stored(1, 0, 4, nil), stored(2, 0, 4, nil))
	f.publish(stored(1, 0, 4, nil))
	f.want(1, "exact", 4*tellerBlock)
	f.publish(map[string]any{"type": "BlockRemoved", "block_hashes": stored(1, 0, 4, nil)["block_hashes"]})
	f.want(1, "load", 0)
	f.want(2, "exact", 4*tellerBlock)
	if n := f.held(); n != 4 {
		t.Errorf("%d blocks are believed held, want the other prompt's 4", n)
	}
}

// A worker that seems known wholly names a parent that it never told of: it is asked for all of it, again and later each time while no
// answer can be read, keeps what it is known for meanwhile, and is known wholly once it has answered.
func TestUnknownParentIsAskedFor(t *testing.T) {
	t.Parallel()
	router := zmq4.NewRouter(t.Context())
	defer router.Close()
	if err := router.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	f := tell(t, "127.0.0.1", nil, map[string]any{"replay": "tcp://" + router.Addr().String()})
	first, child, front := stored(1, 0, 4, nil), stored(2, 2, 2, uint64(2001)), stored(2, 0, 2, nil)
	asked := make(chan time.Time, 1000)
	answers := func(batches ...[]byte) { // one question
		m, err := router.Recv()
		if err != nil {
			return
		}
		asked <- time.Now()
		if batches == nil {
			_ = router.Send(zmq4.NewMsgFrom(m.Frames[0], nil, []byte("no answer")))
			return
		}
		for i := bigendian.BigEndian.Uint64(m.Frames[len(m.Frames)-1]); i < uint64(len(batches)); i++ {
			_ = router.Send(zmq4.NewMsgFrom(append([][]byte{m.Frames[0], nil}, message(i, batches[i]).Frames...)...))
		}
		_ = router.Send(zmq4.NewMsgFrom(m.Frames[0], nil, nil, bytes.Repeat([]byte{0xff}, 8), nil))
	}
	partial := func() bool {
		rows, _ := lab.Get("http://" + f.admin + "/workers")
		return gjson.GetBytes(rows, "0.partial").Bool()
	}
	answers(payload(t, first))
	f.seq = 1
	eventually(t, "it is known wholly", func() bool { return f.held() == 4 && !partial() })
	for len(asked) > 0 {
		<-asked
	}
	f.publish(child)
	answers()
	answers()
	answers()
	f.want(1, "exact", 4*tellerBlock)
	if !partial() || f.count(`what="unknown_parents"`) == 0 {
		t.Error("it seems to be known wholly")
	}
	f.want(2, "load", 0)
	answers(payload(t, first, front), payload(t, child))
	eventually(t, "it is known wholly again", func() bool { return f.held() == 8 && !partial() })
	f.want(1, "exact", 4*tellerBlock)
	f.want(2, "exact", 4*tellerBlock)
	if f.count(`what="restarts"`) != 0 {
		t.Error("it counts as started anew")
	}
	last, pauses := <-asked, []time.Duration{}
	for len(asked) > 0 {
		now := <-asked
		pauses, last = append(pauses, now.Sub(last)), now
	}
	t.Log("pauses between the questions: ", pauses)
	if len(pauses) != 3 || pauses[2] < time.Second { // half of the third wait, which is four times the first
		t.Error("want three, the last of a second at least")
	}
}

// A publisher that connects to us is heard from its worker's own address alone, over IPv6 as over IPv4.
func TestBoundHearsItsWorkerAlone(t *testing.T) {
	t.Parallel()
	for worker, stranger := range map[string]string{"127.0.0.1": "::1", "::1": "127.0.0.1"} {
		t.Run(worker, func(t *testing.T) {
			_, port, _ := net.SplitHostPort(freeAddr(t))
			f := tell(t, worker, nil, map[string]any{"zmq": "tcp://*:" + port, "bind": true})
			if err := f.pub.Dial("tcp://" + net.JoinHostPort(worker, port)); err != nil {
				t.Fatal(err)
			}
			f.publish(stored(1, 0, 4, nil))
			other := net.JoinHostPort(stranger, port)
			if c, err := net.Dial("tcp", other); err != nil {
				t.Skip("this machine has no such address: ", err)
			} else if n, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("a stranger is greeted: %d bytes", n)
			}
			f.publish(stored(2, 0, 4, nil))
			for prompt := 1; prompt <= 2; prompt++ {
				f.want(prompt, "exact", 4*tellerBlock)
			}
			if n := f.count(`what="strangers"`); n != 1 {
				t.Errorf("%v strangers are counted, want 1", n)
			}
		})
	}
}
