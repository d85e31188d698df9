// Package page looks at the admin page as people do: in a real browser (chromium on PATH), before `sightline-lab demo --stay` of the
// binary that SIGHTLINE names. It is a module of its own: nobody else needs a browser's protocol. `make page` runs it.
package page

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	update = flag.Bool("update", false, "write docs/page.png")
	shots  = flag.String("shots", "", "a folder for an image of each page")
)

const patience = 40 * time.Second // a loaded machine's

// demo is the running product.
type demo struct{ page, envoy, body string }

var said = regexp.MustCompile(`(?s)curl -s (\S+)/v1/chat/completions .* -d '([^']+)'.*Sightline's page  (\S+)/`)

func start(t *testing.T) demo {
	t.Helper()
	bin := os.Getenv("SIGHTLINE_LAB")
	if bin == "" {
		t.Fatal("SIGHTLINE_LAB is not set (want the path of sightline-lab, with sightline beside it, as make page gives it)")
	}
	cmd := exec.CommandContext(t.Context(), bin, "demo", "--stay")
	cmd.Dir = "../.."
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	var text strings.Builder
	for lines := bufio.NewScanner(io.TeeReader(out, &text)); lines.Scan(); {
		if m := said.FindStringSubmatch(text.String()); m != nil {
			return demo{page: m[3], envoy: m[1], body: m[2]}
		}
	}
	t.Fatalf("the demo ended:\n%s", text.String())
	return demo{}
}

// traffic fills the page for so long, and goes on until it is stopped.
func (d demo) traffic(t *testing.T, seconds int) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Getenv("SIGHTLINE_LAB"), "bench", "--url", d.envoy, "--shape", "images", "--rate", "3",
		"--seconds", strconv.Itoa(2*seconds), "--seed", "7")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Duration(seconds) * time.Second)
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
}

func (d demo) ask(t *testing.T) { d.send(t, d.body, http.StatusOK) }

// askFor asks for a model that no worker has.
func (d demo) askFor(t *testing.T, model string) {
	d.send(t, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"Hello"}]}`, model), http.StatusNotFound)
}

func (d demo) send(t *testing.T, body string, status int) {
	t.Helper()
	resp, err := http.Post(d.envoy+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, want %d, %v", resp.StatusCode, status, err)
	}
}

// heard is what a tab complained of and asked for.
type heard struct {
	mu       sync.Mutex
	problems []string
	asked    []string
}

func (h *heard) listen(event any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		h.problems = append(h.problems, fmt.Sprint(e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		h.problems = append(h.problems, fmt.Sprint("console.", e.Type))
	case *log.EventEntryAdded:
		h.problems = append(h.problems, e.Entry.Text+" "+e.Entry.URL)
	case *network.EventRequestWillBeSent:
		h.asked = append(h.asked, e.Request.URL)
	}
}

// check fails the test for each complaint, and for what was asked of anybody else.
func (h *heard) check(t *testing.T, where, origin string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.problems {
		t.Errorf("%s: the browser says %s", where, p)
	}
	for _, url := range h.asked {
		if !strings.HasPrefix(url, origin+"/") {
			t.Errorf("%s: it asked for %s", where, url)
		}
	}
	if len(h.asked) == 0 {
		t.Errorf("%s: nothing was asked for", where)
	}
}

func browser(t *testing.T) context.Context {
	t.Helper()
	bin, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed (Debian's package chromium); without a browser this test says nothing")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(bin), chromedp.NoSandbox,
		chromedp.Flag("disable-gpu", true), chromedp.WSURLReadTimeout(patience))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// tab opens one in a browser, in a size and a colour scheme.
func tab(t *testing.T, browser context.Context, width, height int64, scheme string) (context.Context, *heard) {
	t.Helper()
	ctx, stop := chromedp.NewContext(browser)
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, 4*patience)
	t.Cleanup(stop)
	h := new(heard)
	chromedp.ListenTarget(ctx, h.listen)
	run(t, ctx, network.Enable(), log.Enable(), chromedp.EmulateViewport(width, height),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	return ctx, h
}

func run(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func eval[T any](t *testing.T, ctx context.Context, js string) (v T) {
	t.Helper()
	run(t, ctx, chromedp.Evaluate(js, &v))
	return v
}

// until waits for the page to be so. It asks from here: the page's own policy forbids what chromedp.Poll puts into it.
func until(t *testing.T, ctx context.Context, what, js string) {
	t.Helper()
	for end := time.Now().Add(patience); !eval[bool](t, ctx, js); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s; the page: %s", what, eval[string](t, ctx, `document.body.innerText.slice(0, 2000)`))
		}
	}
}

// sizes are those of a phone, a tablet, a small and a usual laptop.
var sizes = [][2]int64{{390, 844}, {820, 1180}, {1280, 800}, {1440, 900}}

const newest = `document.querySelector('#decisions td a')?.getAttribute('href')`

// The page in four sizes, light and dark: nothing is cut off, nothing is complained of, nobody else is asked; a request shows
// without a reload, in all of them; links lead from a decision to its worker, its image and its candidates.
func TestPage(t *testing.T) {
	d := start(t)
	b := browser(t)
	seconds := 10
	if *update {
		seconds = 60
	}
	stop := d.traffic(t, seconds)
	if *update {
		shoot(t, b, d)
	}
	stop()
	for _, scheme := range []string{"light", "dark"} {
		for _, size := range sizes {
			name := fmt.Sprintf("%s-%d", scheme, size[0])
			t.Run(name, func(t *testing.T) {
				ctx, h := tab(t, b, size[0], size[1], scheme)
				run(t, ctx, chromedp.Navigate(d.page+"/"))
				until(t, ctx, "it is live", `document.getElementById('live').classList.contains('on')`)
				// The page names a model that no worker serves from the first request for it.
				stranger := "gpt-5-" + name
				d.askFor(t, stranger)
				until(t, ctx, "the unserved name shows",
					fmt.Sprintf(`[...document.querySelectorAll('#problems li')].some(e => e.textContent.includes('"%s"'))`, stranger))
				before := eval[string](t, ctx, newest)
				run(t, ctx, chromedp.Evaluate(`window.same = true`, nil))
				d.ask(t)
				until(t, ctx, "the request shows", fmt.Sprintf(`%s !== %q`, newest, before))
				until(t, ctx, "its end shows", `document.querySelector('#decisions tr:nth-child(2)').textContent.includes('200')`)
				if !eval[bool](t, ctx, `window.same === true`) {
					t.Error("the page was loaded again")
				}
				if !eval[bool](t, ctx, `[...document.querySelectorAll("#fleet .strip [data-l='last event']")]
					.every(e => /^(.* ago|within a second)$/.test(e.innerText))`) {
					t.Error("last events: ", eval[string](t, ctx, `document.querySelector('#fleet').innerText`))
				}
				look(t, ctx, name+"-page")
				// From the decision to its candidates, its worker and its image.
				follow(t, ctx, `#decisions td a`)
				if n := eval[int](t, ctx, `document.querySelectorAll('#decision table tr').length`); n != 4 {
					t.Errorf("%d rows of candidates, want 3 and a heading", n)
				}
				look(t, ctx, name+"-decision")
				follow(t, ctx, `#decision a[href^="/?image="]`)
				if n := eval[int](t, ctx, `document.querySelectorAll('#decisions tr').length`); n < 3 {
					t.Errorf("%d decisions about an image that was asked for before", n-1)
				}
				follow(t, ctx, `#decisions a[href^="/?worker="]`)
				if !eval[bool](t, ctx, `[...document.querySelectorAll('#decisions tr td:nth-child(2) a')].every(a => a.href === location.href)`) {
					t.Error("a worker's page shows another's decisions")
				}
				if !eval[bool](t, ctx,
					`/(.* ago|within a second)$/.test(document.querySelector("#worker .strip [data-l='last event']").innerText)`) {
					t.Error("a worker's page does not say how the worker is: ", eval[string](t, ctx, `document.body.innerText.slice(0, 500)`))
				}
				look(t, ctx, name+"-worker")
				h.check(t, name, d.page)
			})
		}
	}
}

// follow clicks on a link and waits for where it leads.
func follow(t *testing.T, ctx context.Context, link string) {
	t.Helper()
	if _, err := chromedp.RunResponse(ctx, chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).click()`, link), nil)); err != nil {
		t.Fatalf("%s: %v", link, err)
	}
}

// look sees to it that nothing stands out at the side, or is hidden behind something's edge, and takes an image.
func look(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if wide := eval[string](t, ctx, `[document.scrollingElement, ...document.querySelectorAll('.scroll, .card, figure, header')]
		.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.tagName + '.' + e.className + ' ' + e.scrollWidth + ' > ' + e.clientWidth).join('; ')`); wide != "" {
		t.Errorf("%s: wider than there is room: %s", name, wide)
	}
	if *shots == "" {
		return
	}
	var shot []byte
	run(t, ctx, chromedp.FullScreenshot(&shot, 100))
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), shot, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shoot writes docs/page.png, in few colours: 150 KB at most.
func shoot(t *testing.T, browser context.Context, d demo) {
	ctx, _ := tab(t, browser, 1440, 900, "light")
	var shot []byte
	run(t, ctx, chromedp.Navigate(d.page+"/"))
	until(t, ctx, "it is live", `document.getElementById('live').classList.contains('on')`)
	d.ask(t)
	until(t, ctx, "the request shows", `document.querySelector('#decisions tr:nth-child(2)').textContent.includes('200')`)
	run(t, ctx, chromedp.CaptureScreenshot(&shot))
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	few := image.NewPaletted(full.Bounds(), palette(full))
	draw.Draw(few, few.Rect, full, full.Bounds().Min, draw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil || out.Len() > 150<<10 {
		t.Fatalf("%d bytes, %v", out.Len(), err)
	}
	if err := os.WriteFile("../../docs/page.png", out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// palette is of the colours that are most often in an image.
func palette(m image.Image) (p color.Palette) {
	count := map[color.RGBA]int{}
	for y := range m.Bounds().Dy() {
		for x := range m.Bounds().Dx() {
			count[color.RGBAModel.Convert(m.At(x, y)).(color.RGBA)]++
		}
	}
	all := make([]color.RGBA, 0, len(count))
	for c := range count {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int { return count[b] - count[a] })
	for _, c := range all[:min(len(all), 256)] {
		p = append(p, c)
	}
	return p
}
