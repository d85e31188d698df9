// Package look shows running Sightlines in a terminal: what is broken, what requests get, how workers are.
//
//	look.go      whom to ask, all at once; what is printed: text, JSON, YAML, once or again and again
//	kubectl.go   Sightlines in a cluster, by their Service
//	table.go     tables and colours, as wide as the terminal
//	status.go    status and top     workers.go   workers and problems     decisions.go   decisions
//
// It reads the admin page's JSON and shows the same with -o json. Names from outside reach the terminal only as printable characters.
package look

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/internal/printable"
)

// AddressVariable is the environment variable with the admin pages to ask.
const AddressVariable = "SIGHTLINE_ADMIN"

// From says which Sightlines are asked: those of Admin, else of $SIGHTLINE_ADMIN, else of the configuration, else the one at
// 127.0.0.1:9903.
type From struct {
	Config    string   // a configuration's file
	Admin     []string // URLs, host:port, or svc/NAME of Kubernetes
	Namespace string   // of svc/NAME; "": kubectl's current one
}

// Asked are the Sightlines that are asked.
type Asked struct {
	At    []string // their admin pages; a pod to which nothing leads by its name
	Token string   // "": that in the environment
	Close func()   // ends what leads there

	away map[string]error // why nothing leads to a pod
}

// Open finds the Sightlines. The caller must call Close, unless there is an error.
func (f From) Open(ctx context.Context) (a Asked, err error) {
	a.Close, a.away = func() {}, make(map[string]error)
	at := f.Admin
	if len(at) == 0 {
		at = strings.FieldsFunc(os.Getenv(AddressVariable), func(r rune) bool { return r == ',' || r == ' ' })
	}
	if f.Config != "" {
		cfg, err := config.Load(f.Config)
		if err != nil {
			return a, err
		}
		a.Token = cfg.AdminToken
		if url := cfg.AdminURL(); len(at) == 0 && url != "" {
			at = []string{strings.NewReplacer("://0.0.0.0:", "://127.0.0.1:", "://[::]:", "://[::1]:", "://:", "://127.0.0.1:").Replace(url)}
		} else if len(at) == 0 {
			return a, fmt.Errorf("%s: admin is not set, so nothing can be asked", f.Config)
		}
	}
	for _, one := range at {
		name, is := strings.CutPrefix(one, "svc/")
		if !is {
			a.At = append(a.At, one)
			continue
		}
		found, away, end, err := forward(ctx, f.Namespace, name)
		if err != nil {
			a.Close()
			return a, fmt.Errorf("--admin %s: %w", one, err)
		}
		before := a.Close
		maps.Copy(a.away, away)
		a.At, a.Close = append(a.At, found...), func() { before(); end() }
	}
	if len(a.At) == 0 {
		a.At = []string{"http://127.0.0.1:9903"}
	}
	return a, nil
}

// One is Open for commands that ask a single Sightline: any of them.
func (f From) One(ctx context.Context) (q admin.AdminRequest, end func(), err error) {
	a, err := f.Open(ctx)
	if err != nil {
		return q, nil, err
	}
	there := slices.IndexFunc(a.At, func(at string) bool { return a.away[at] == nil })
	return admin.AdminRequest{Base: a.At[there], Token: a.Token, MaxBytes: maxAnswer}, a.Close, nil
}

const (
	maxAnswer = 64 << 20 // bytes
	period    = 2 * time.Second
)

// answer is what one of the Sightlines answers.
type answer[T any] struct {
	at   string
	text []byte
	err  error
	T    T
}

// get asks all Sightlines at once. It fails if none answers.
func get[T any](ctx context.Context, a Asked, path string) ([]answer[T], error) {
	list := make([]answer[T], len(a.At))
	var all sync.WaitGroup
	for i, at := range a.At {
		all.Go(func() {
			one := &list[i]
			one.at, one.err = at, a.away[at]
			if one.err != nil {
				return
			}
			one.text, one.err = admin.Ask(ctx, admin.AdminRequest{Base: at, Path: path, Token: a.Token, MaxBytes: maxAnswer})
			if one.err == nil {
				one.err = json.Unmarshal(one.text, &one.T)
			}
		})
	}
	all.Wait()
	var errs []error
	for i := range list {
		errs = append(errs, list[i].err)
		if list[i].err == nil {
			return list, nil
		}
	}
	return nil, errors.Join(errs...)
}

// View is how something is shown.
type View struct {
	From
	Output string // table, wide, json or yaml
	Watch  bool
	Out    *os.File
	Errors io.Writer
	Color  bool

	pages int // shown so far
}

// show asks again and again if that is wanted, and prints what once returns: as text, or as JSON of it.
func (v *View) show(ctx context.Context, once func(context.Context, Asked) (shape any, text func(*page), err error)) error {
	a, err := v.Open(ctx)
	if err != nil {
		return err
	}
	defer a.Close()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	live := v.Watch && v.structured() == "" && v.isTerminal()
	if live {
		fmt.Fprint(v.Out, "\x1b[?25l\x1b[2J")
		defer fmt.Fprint(v.Out, "\x1b[?25h")
	}
	for {
		shape, text, err := once(ctx, a)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!v.Watch || v.pages == 0):
			return err
		case err != nil:
			text = func(p *page) { p.line(p.bad("× nothing answers"), said(strings.ReplaceAll(err.Error(), "\n", "; "))) }
		}
		if err == nil && v.structured() != "" {
			err = v.write(shape)
		} else {
			p := v.page()
			text(p)
			if live {
				p.fit()
			} else if v.pages > 0 {
				p.before("\n")
			}
			_, err = p.WriteTo(v.Out)
		}
		v.pages++
		if err != nil || !v.Watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case <-time.After(period):
		}
	}
}

func (v *View) structured() string {
	if v.Output == "json" || v.Output == "yaml" {
		return v.Output
	}
	return ""
}

func (v *View) isTerminal() bool { return term.IsTerminal(int(v.Out.Fd())) }

// write prints JSON or YAML: of what is shown once as a document that people read, else one object a line, or one YAML document each.
func (v *View) write(shape any) error {
	text, err := json.Marshal(shape)
	if err != nil {
		return err
	}
	switch {
	case v.Output == "yaml":
		text, err = toYAML(text)
	case v.Watch:
		text = append([]byte(printable.JSON(text)), '\n')
	default:
		var out bytes.Buffer
		err = json.Indent(&out, []byte(printable.JSON(text)), "", "  ")
		text = append(out.Bytes(), '\n')
	}
	if err == nil {
		_, err = printable.Writer(v.Out).Write(text) // YAML escapes fewer than JSON does
	}
	return err
}

// toYAML returns a YAML document of JSON, in the order of its keys.
func toYAML(text []byte) ([]byte, error) {
	text = bytes.Map(func(r rune) rune {
		if r > 0xFFFF && !unicode.IsPrint(r) { // YAML has no escape of two halves
			return unicode.ReplacementChar
		}
		return r
	}, text)
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(printable.JSON(text)), &document); err != nil {
		return nil, err
	}
	var block func(*yaml.Node)
	block = func(n *yaml.Node) {
		n.Style = 0
		for _, below := range n.Content {
			block(below)
		}
	}
	block(&document)
	text, err := yaml.Marshal(&document)
	return append([]byte("---\n"), text...), err
}

// tell says which Sightlines did not answer.
func tell[T any](v *View, list []answer[T]) {
	for i := range list {
		if err := list[i].err; err != nil {
			fmt.Fprintf(v.Errors, "sightline: %s\n", printable.Text(err.Error()))
		}
	}
}

func plural(n int, of string) string {
	return fmt.Sprintf("%s %s%s", thousands(n), of, map[bool]string{false: "s"}[n == 1])
}

// thousands writes a count with commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// narrow takes the spaces out of a number, for a table's cell.
func narrow(text string) string { return strings.ReplaceAll(text, " ", "") }

func short(n float64) string { return narrow(printable.Amount(math.Round(n))) }

func percent(part, of int) string { return narrow(printable.Percent(part, of)) }

// millis writes a time to the first byte; 0: not known.
func millis(ms float64) string {
	switch {
	case ms <= 0:
		return "–"
	case ms < 10:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 1e4:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.1fs", ms/1e3)
}

// ago writes a duration for people.
func ago(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func orDash(text string) string { return cmp.Or(text, "–") }
