package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	zmq4 "github.com/go-zeromq/zmq4"
	"github.com/tidwall/gjson"
	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
)

// TestAlmostCompatiblePublishers: a worker whose KV events come in another form than its engine's is not "live". One log line,
// /workers and the doctor name the form.
func TestAlmostCompatiblePublishers(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	packed := func(v ...any) []byte {
		b, err := msgp.AppendIntf(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	stored := func(i int) []any {
		ids := make([]any, 16)
		for k := range ids {
			ids[k] = 16*i + k
		}
		return []any{"BlockStored", []any{1000 + i}, nil, ids, 16, nil, "GPU", nil}
	}
	whole := func(i int) []byte { return packed(1.5, []any{stored(i)}, 0) }
	seq := func(i int) []byte { return []byte{0, 0, 0, 0, 0, 0, byte(i >> 8), byte(i)} }
	forms := []struct {
		name, says string // "": it is read
		frames     func(i int) [][]byte
	}{
		{"good", "", func(i int) [][]byte { return [][]byte{nil, seq(i), whole(i)} }},
		{"one", "messages of 1 frame", func(i int) [][]byte { return [][]byte{whole(i)} }},
		{"two", "messages of 2 frames with 9 bytes before the payload", func(i int) [][]byte { return [][]byte{[]byte("kv-events"), whole(i)} }},
		{"topic-of-8", "no big-endian sequence number", func(i int) [][]byte { return [][]byte{[]byte("kvevents"), whole(i)} }},
		{"seq4", "messages of 3 frames with 4 bytes before", func(i int) [][]byte { return [][]byte{nil, seq(i)[4:], whole(i)} }},
		{"json", "got text, such as JSON", func(i int) [][]byte { return [][]byte{nil, seq(i), []byte(`{"events":[]}`)} }},
		{"other-order", "whose first elements are array and float64", func(i int) [][]byte {
			return [][]byte{nil, seq(i), packed([]any{stored(i)}, 1.5)}
		}},
		{"flat", "want a map or an array, got str", func(i int) [][]byte { return [][]byte{nil, seq(i), packed(1.5, []any{"BlockStored"}, 0)} }},
		{"other-types", "unknown types", func(i int) [][]byte {
			return [][]byte{nil, seq(i), packed(1.5, []any{map[string]any{"type": "stored", "hashes": []any{i}}}, 0)}
		}},
	}
	dir, admin := t.TempDir(), freeAddr(t)
	config := fmt.Sprintf("listen: %q\nadmin: %q\ndrain: 0s\nenvoy: {listen: %q, admin: %q}\nmodels: [{name: %s, dir: %q, "+
		"block_size: 16}]\nworkers:\n",
		freeAddr(t), admin, freeAddr(t), freeAddr(t), lab.ModelName, absolute(t, modelDir))
	for i, form := range forms {
		pub := zmq4.NewPub(t.Context())
		if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		go func() {
			for i := 0; t.Context().Err() == nil; i++ {
				_ = pub.Send(zmq4.NewMsgFrom(form.frames(i)...))
				time.Sleep(20 * time.Millisecond)
			}
			_ = pub.Close()
		}()
		config += fmt.Sprintf("- {name: %s, addr: \"127.0.0.1:%d\", events: {zmq: \"tcp://%s\"}}\n", form.name, i+1, pub.Addr())
	}
	file := filepath.Join(dir, "sightline.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "sightline", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
	var rows gjson.Result
	eventually(t, "each form is named", func() bool {
		res, err := http.Get("http://" + admin + "/workers")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		rows = gjson.ParseBytes(b)
		return len(rows.Get(`#(events=="unreadable")#`).Array()) == len(forms)-1 && rows.Get("0.events").Str == "live"
	})
	log := func() string { b, _ := os.ReadFile(p.log.Name()); return string(b) }
	for i, form := range forms {
		row := rows.Get(fmt.Sprint(i))
		if row.Get("name").Str != form.name || !strings.Contains(row.Get("events_error").Str, form.says) {
			t.Errorf(`got %s: %s, want row.Get("name").Str == form.name, strings.Contains(row.Get("events_error").Str, form.says)`, form.name, row)
		}
		named := func() bool {
			for line := range strings.Lines(log()) {
				if one := gjson.Parse(line); strings.Contains(one.Get("msg").Str, "events that cannot be read") &&
					one.Get(fmt.Sprintf("workers.#(==%q)", form.name)).Exists() {
					return true
				}
			}
			return false
		}
		if form.says != "" {
			eventually(t, "the log names "+form.name, named)
		} else if named() {
			t.Errorf("the log names %s, which can be read", form.name)
		}
	}
	var (
		checks     []doctor.Result
		status, at int
	)
	// A connection that was just made again has not shown its form yet.
	eventually(t, "doctor names each form", func() bool {
		checks, status = doctored(t, bin, file)
		at = slices.IndexFunc(checks, func(r doctor.Result) bool { return r.Code == "SL0309" })
		says := strings.Join(checks[at].Evidence, "\n")
		for _, form := range forms {
			if named := strings.Contains(says, form.name+": "); named != (form.says != "") || !strings.Contains(says, form.says) {
				t.Logf("%s: %s", form.name, says)
				return false
			}
		}
		return true
	})
	if status != 1 || checks[at].Verdict != doctor.Error {
		t.Errorf("status %d: %+v, want 1, Verdict %q", status, checks[at], doctor.Error)
	}
}
