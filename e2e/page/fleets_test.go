package page

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// madeUp starts the pages of made-up fleets, and returns their addresses by "size broken".
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

// The pages of fleets of 1, 48 and 200 workers, well and broken, in three sizes, light and dark: what is wrong comes first, the live
// mark is green only if nothing is, 200 workers are on one screen, nothing that one needs at night is hidden, and axe finds no
// serious fault.
func TestFleetPages(t *testing.T) {
	at := madeUp(t)
	b := browser(t)
	axe, err := os.ReadFile(os.Getenv("SIGHTLINE_AXE"))
	if err != nil {
		t.Logf("axe: NOT RUN: %v (make page fetches it with npm)", err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, size := range [][2]int64{{390, 844}, {820, 1180}, {1440, 900}} {
			for fleet, page := range at {
				broken := strings.HasSuffix(fleet, "true")
				name := fmt.Sprintf("fleet-%s-%s-%d", strings.ReplaceAll(fleet, " ", "-"), scheme, size[0])
				t.Run(name, func(t *testing.T) {
					ctx, h := tab(t, b, size[0], size[1], scheme)
					run(t, ctx, chromedp.Navigate(page+"/"))
					until(t, ctx, "it is live", `document.getElementById('live').classList.contains('on')`)
					green := eval[bool](t, ctx, `(() => { const probe = document.createElement('i'); probe.className = 'good'; document.body.append(probe);
						const good = getComputedStyle(probe).color; probe.remove();
						return getComputedStyle(document.getElementById('live'), '::before').color === good })()`)
					if green == broken {
						t.Errorf("the live mark is green: %v", green)
					}
					if shown := eval[bool](t, ctx, `(document.querySelector('.problems')?.getBoundingClientRect().top ?? 1e9) < 150`); shown != broken {
						t.Errorf("problems at the top: %v", shown)
					}
					for _, part := range []string{".strip b", ".strip .say", "#decisions td[data-l=status]", "#decisions td[data-l='first byte']",
						"#filter", "#q", "#pause"} {
						if !eval[bool](t, ctx, fmt.Sprintf(`document.querySelector(%q)?.offsetWidth > 0`, part)) {
							t.Errorf("%s is not visible", part)
						}
					}
					if height := eval[float64](t, ctx, `document.querySelector('.fleet').offsetHeight`); size[0] == 1440 && height > 800 {
						t.Errorf("the workers take %v px", height)
					}
					if strings.HasPrefix(fleet, "200") && size[0] == 1440 && scheme == "light" {
						use(t, ctx, broken)
					}
					look(t, ctx, name)
					if len(axe) > 0 {
						serious(t, ctx, string(axe))
					}
					h.check(t, name, page)
				})
			}
		}
	}
}

// use looks for a worker, sorts, points at a plot, pauses and chooses decisions.
func use(t *testing.T, ctx context.Context, broken bool) {
	t.Helper()
	type step struct{ what, do, until string }
	set := func(field, value, event string) string {
		return fmt.Sprintf(`%s.value = %q; %s.dispatchEvent(new Event(%q))`, field, value, field, event)
	}
	count := func(what string, n int) string {
		return fmt.Sprintf(`document.querySelectorAll(%q).length === %d`, what, n)
	}
	steps := []step{
		{"a worker is found", set("find", "gpu-117:", "input"), count(".strip:not([hidden])", 1)},
		{"all are there again", set("find", "", "input"), count(".strip:not([hidden])", 200)},
		{"they are sorted", set("sort", "load", "change"), `document.querySelector('.strip').dataset.load === '22'`},
		{"a value is under the pointer", `(() => { const s = document.querySelectorAll('figure svg')[3], r = s.getBoundingClientRect();
			s.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: r.right - 1, clientY: r.top + 9 })) })()`,
			`/^\d+ s ago: [\d.]+, [\d.]+/.test(document.querySelectorAll('.axis')[3].textContent)`},
		{"decisions are searched", set("q", "request-042", "change"), count("#decisions td[data-l=ago]", 1)},
		{"all decisions are there again", set("q", "", "change"), count("#decisions td[data-l=ago]", 25)},
	}
	if broken {
		steps = append(steps, step{"failed ones are chosen", set("filter", "failed", "change"),
			`[...document.querySelectorAll('#decisions td[data-l=status]')].every(e => e.textContent === '503')`})
	}
	for _, s := range steps {
		run(t, ctx, chromedp.Evaluate(s.do, nil))
		until(t, ctx, s.what, s.until)
	}
}

// serious fails for each fault of accessibility that axe calls serious or critical.
func serious(t *testing.T, ctx context.Context, axe string) {
	t.Helper()
	run(t, ctx, chromedp.Evaluate(axe+"; true", nil))
	var said string
	run(t, ctx, chromedp.Evaluate(`axe.run().then(r => r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical')
		.map(v => v.id + ' at ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + ' ' + (n.any[0]?.message ?? '')).join(' | ')).join('; '))`,
		&said, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if said != "" {
		t.Errorf("axe: %s", said)
	}
}
