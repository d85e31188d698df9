package page

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// madeUp starts the pages of made-up fleets, and returns their addresses by "size state".
func madeUp(t *testing.T) map[string]string {
	t.Helper()
	bin := t.TempDir() + "/admin.test" // go test would give it no input
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", bin, "./app/admin")
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), bin, "-test.run", "^TestFleets$")
	cmd.Dir, cmd.Env = "../../app/admin", append(os.Environ(), "SIGHTLINE_PAGES=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	at := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "PAGES" {
			return at
		}
		if f := strings.Fields(lines.Text()); len(f) == 4 && f[0] == "PAGE" {
			at[f[1]+" "+f[2]] = f[3]
		}
	}
	t.Fatal("the pages ended")
	return nil
}

// The pages of fleets from none to 200 workers, well, broken, of ranks and of long names, in four sizes, two of them light, two dark: what
// is wrong comes first and in words, tiles fill their rows, a name keeps its rank, figures stand in columns, plots come before workers,
// nothing is cut off, and axe finds no fault.
func TestFleetPages(t *testing.T) {
	at := madeUp(t)
	b := browser(t)
	axe, err := os.ReadFile(os.Getenv("SIGHTLINE_AXE"))
	if err != nil {
		t.Logf("axe: NOT RUN: %v (make page fetches it with npm)", err)
	}
	for i, size := range sizes {
		for fleet, page := range at {
			n, state, _ := strings.Cut(fleet, " ")
			scheme := map[bool]string{true: "dark", false: "light"}[(state == "broken") == (i%2 == 0)]
			name := fmt.Sprintf("%s-%s-%d", n, state, size[0])
			t.Run(name, func(t *testing.T) {
				ctx, h := tab(t, b, size[0], size[1], scheme)
				run(t, ctx, chromedp.Navigate(page+"/"))
				until(t, ctx, "it is live", `document.getElementById('live').classList.contains('on')`)
				broken := state == "broken" || state == "storm"
				if said := eval[string](t, ctx, `document.getElementById('live').textContent`); (said == "live") == broken {
					t.Errorf("broken %v: the live mark says %q", broken, said)
				}
				if shown := eval[bool](t, ctx, `(document.querySelector('.problems')?.getBoundingClientRect().top ?? 1e9) < 150`); shown != broken {
					t.Errorf("problems at the top: %v, want %v", shown, broken)
				}
				for want, got := range eval[map[string]string](t, ctx, layout) {
					t.Errorf("got %.600s, want %s", got, want)
				}
				if n == "200" && size[0] == 1440 {
					use(t, ctx, state)
				}
				if state == "storm" {
					keys(t, ctx)
				}
				look(t, ctx, name)
				if len(axe) > 0 {
					clean(t, ctx, string(axe))
				}
				h.check(t, name, page)
			})
		}
	}
}

//go:embed layout.js
var layout string

// keys does without a pointer: what is folded opens and stays so, focus outlasts updates, the arrows move through the plots.
func keys(t *testing.T, ctx context.Context) {
	t.Helper()
	run(t, ctx, chromedp.Evaluate(`(() => { const d = [...document.querySelectorAll('.problems details')].find(d => !d.open);
		d.firstChild.focus(); d.firstChild.click(); window.opened = d.dataset.key; document.querySelector('.problems').dataset.old = 1 })()`, nil))
	until(t, ctx, "the problems are drawn again", `!document.querySelector('.problems').dataset.old`)
	if got := eval[string](t, ctx, `(() => { const e = document.activeElement, d = e.parentNode;
		return d.dataset.key === opened && d.open ? '' : e.outerHTML.slice(0, 100) })()`); got != "" {
		t.Errorf("the focus is at %s, want the open problem", got)
	}
	run(t, ctx, chromedp.Evaluate(`document.getElementById('plots').focus()`, nil), chromedp.KeyEvent(kb.ArrowLeft))
	until(t, ctx, "a value is told to the keyboard", `/^\d+ s ago: /.test(document.querySelector('.axis').textContent)`)
}

// use looks for a worker, sorts, points at a plot, pauses and chooses decisions.
func use(t *testing.T, ctx context.Context, state string) {
	t.Helper()
	type step struct{ what, do, until string }
	set := func(field, value, event string) string {
		return fmt.Sprintf(`%s.value = %q; %s.dispatchEvent(new Event(%q))`, field, value, field, event)
	}
	count := func(what string, n int) string {
		return fmt.Sprintf(`document.querySelectorAll(%q).length === %d`, what, n)
	}
	one := "gpu-117 "
	if state == "ranks" {
		one = "x07z rank 5"
	}
	steps := []step{
		{"a worker is found", set("find", one, "input"), count(".strip:not([hidden])", 1)},
		{"all are there again", set("find", "", "input"), count(".strip:not([hidden])", 200)},
		{"they are sorted", set("sort", "load", "change"), `document.querySelector('.strip').dataset.load === '22'`},
		{"a value is under the pointer", `(() => { const s = document.querySelectorAll('figure svg')[3], r = s.getBoundingClientRect();
			s.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: r.right - 1, clientY: r.top + 9 })) })()`,
			`/^\d+ s ago: [\d.]+, [\d.]+/.test(document.querySelectorAll('.axis')[3].textContent)`},
		{"decisions are searched", set("q", "request-042", "change"), count("#decisions td[data-l=ago]", 1)},
		{"all decisions are there again", set("q", "", "change"), count("#decisions td[data-l=ago]", 25)},
	}
	if state == "broken" {
		steps = append(steps, step{"failed ones are chosen", set("filter", "failed", "change"),
			`[...document.querySelectorAll('#decisions td[data-l=status]')].every(e => e.textContent === '503')`})
	}
	for _, s := range steps {
		run(t, ctx, chromedp.Evaluate(s.do, nil))
		until(t, ctx, s.what, s.until)
	}
}

// clean fails for each fault of accessibility that axe finds.
func clean(t *testing.T, ctx context.Context, axe string) {
	t.Helper()
	run(t, ctx, chromedp.Evaluate(axe+"; true", nil))
	var said string
	run(t, ctx, chromedp.Evaluate(`axe.run().then(r => r.violations.map(v => v.id + ' at ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + ' ' + (n.any[0]?.message ?? '')).join(' | ')).join('; '))`,
		&said, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if said != "" {
		t.Errorf("axe: %s", said)
	}
}
