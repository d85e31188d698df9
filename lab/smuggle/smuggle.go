// Package smuggle makes random hostile requests and asks what the engines' servers read in them: Starlette's routes, and the
// bodies by json.loads, orjson and msgspec, in a Python process (engine.py). A field of package denied's table, in a place
// where the table has it, that such a reader finds behind our gate and cleaner was smuggled.
//
// The reader here is another than the cleaner's: it has the table alone in common with it. Of a key that stands twice it looks
// at both values.
package smuggle

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/sightline-router/sightline/internal/denied"
)

//go:embed engine.py
var script string

// Request is a POST.
type Request struct {
	Path           string
	Type, Encoding string // content-type and content-encoding; "": none
	Body           []byte
}

// Python is the interpreter of SIGHTLINE_ENGINES, which has starlette, uvicorn, orjson and msgspec; without it the test is skipped.
func Python(t testing.TB) string {
	python := os.Getenv("SIGHTLINE_ENGINES")
	if python == "" {
		t.Skip("SIGHTLINE_ENGINES is not set: make smuggle has a Python with starlette, uvicorn, orjson and msgspec")
	}
	return python
}

// Command is engine.py with its arguments and the table of what clients must not say.
func Command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Python(t), append([]string{"-c", script, table(t)}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// table is package denied's, as engine.py wants it.
func table(t testing.TB) string {
	type field struct {
		Name   string
		Prefix bool
		In     denied.Scope
	}
	var fields []field
	for _, f := range denied.Fields {
		fields = append(fields, field{f.Name, f.Prefix, f.In})
	}
	within := map[denied.Scope]map[string]denied.Scope{}
	for scope := denied.InBody; scope != 0; scope <<= 1 {
		within[scope] = map[string]denied.Scope{}
		for _, key := range doors {
			if below := scope.Below(key); below != denied.Nowhere {
				within[scope][key] = below
			}
		}
	}
	text, err := json.Marshal(map[string]any{"fields": fields, "within": within, "paths": denied.Endpoints, "list": denied.InList,
		"content": denied.InContent, "message": denied.InMessage, "part": denied.InPart, "body": denied.InBody})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Engine reads what passed the gate, many requests at a time.
type Engine struct {
	cmd *exec.Cmd
	in  *bufio.Writer
	pip io.WriteCloser
	out *bufio.Reader
}

// Start runs an engine until the test ends.
func Start(t testing.TB) *Engine {
	t.Helper()
	e := &Engine{cmd: Command(t)}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.pip, e.in, e.out = in, bufio.NewWriterSize(in, 1<<20), bufio.NewReaderSize(out, 1<<16)
	t.Cleanup(func() { _ = in.Close(); _ = e.cmd.Wait() })
	return e
}

// Smuggled is what an engine's reader found.
type Smuggled struct {
	At            int // among the requests asked about
	Reader, Field string
}

// Send asks about some requests.
func (e *Engine) Send(list []Request) error {
	word := func(b []byte) {
		_, _ = e.in.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
		_, _ = e.in.Write(b)
	}
	_, _ = e.in.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(list))))
	for _, r := range list {
		word([]byte(r.Path))
		word(r.Body)
	}
	return e.in.Flush()
}

// Answer gives what is smuggled among those asked about first, and how many of them some reader read as JSON at an endpoint.
func (e *Engine) Answer() (found []Smuggled, read int, err error) {
	line, err := e.out.ReadBytes('\n')
	if err != nil {
		return nil, 0, fmt.Errorf("the engine's process ended: %w", err)
	}
	var said struct {
		Read  int
		Found []Smuggled
	}
	err = json.Unmarshal(line, &said)
	return said.Found, said.Read, err
}
