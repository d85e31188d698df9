package admin

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/internal/retry"
)

//go:embed page.html page.css page.js icon.svg
var files embed.FS

var assets = map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml"}

const (
	maxWatchers = 32               // pages that are updated live at the same time
	maxDelay    = 10 * time.Second // time that a watcher may take to receive one message
)

// sections are the parts of the page that are sent when they change, by the names of template and element.
var sections = []string{"problems", "now", "plots", "forecast", "fleet", "decisions", "checks", "hour"}

// livePage takes a sample every second and, while a browser watches, renders the page's sections once for all watchers.
type livePage struct {
	state State
	page  *template.Template

	mu       sync.Mutex
	history  history
	sent     map[string]string // the sections as last rendered
	watching []chan []byte     // in the order in which they came
}

func newLivePage(s State) *livePage {
	return &livePage{state: s, page: template.Must(template.New("").Funcs(template.FuncMap{
		"ago": func(t time.Time) string { return printable.Rough(time.Since(t)) }}).ParseFS(files, "page.html"))}
}

// run samples until ctx ends.
func (c *livePage) run(ctx context.Context) {
	for range retry.Every(ctx, time.Second) {
		c.step(time.Now())
	}
}

func (c *livePage) step(now time.Time) {
	first := firstBytes(c.state.Router.RecentSince(now.Add(-10*time.Second), 256))
	totals, rows := c.state.Router.Totals(), c.state.Workers()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history.add(totals, rows, first)
	reloaded := time.Time{}
	if c.state.Reloaded != nil {
		reloaded = c.state.Reloaded()
	}
	c.history.note(now, rows, reloaded)
	if len(c.watching) == 0 {
		c.sent = nil
		return
	}
	news := c.changedSections(now, rows)
	if len(news) == 0 {
		return
	}
	message, _ := json.Marshal(news) // strings always marshal
	c.watching = slices.DeleteFunc(c.watching, func(to chan []byte) bool {
		select {
		case to <- message:
			return false
		default: // it is too slow: it will reconnect and get everything
			close(to)
			return true
		}
	})
}

// changedSections renders the sections and returns those that have changed.
func (c *livePage) changedSections(now time.Time, workers []findings.Worker) map[string]string {
	v := c.view(now, workers, url.Values{})
	if c.sent == nil {
		c.sent = make(map[string]string)
	}
	news := make(map[string]string)
	for _, name := range sections {
		var text bytes.Buffer
		if err := c.page.ExecuteTemplate(&text, name, v); err != nil {
			continue
		}
		if html := text.String(); html != c.sent[name] {
			c.sent[name], news[name] = html, html
		}
	}
	return news
}

// events streams the page's changes as server-sent events.
func (c *livePage) events(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	if len(c.watching) >= maxWatchers { // the oldest stream ends, so that no newcomer is locked out
		close(c.watching[0])
		c.watching = slices.Delete(c.watching, 0, 1)
		c.state.NoRoom("pages")
	}
	if c.sent == nil {
		c.changedSections(time.Now(), c.state.Workers())
	}
	all, _ := json.Marshal(c.sent)
	mine := make(chan []byte, 2)
	c.watching = append(c.watching, mine)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watching = slices.DeleteFunc(c.watching, func(to chan []byte) bool { return to == mine })
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	for message := all; ; {
		_ = out.SetWriteDeadline(time.Now().Add(maxDelay))
		if _, err := w.Write(append(append([]byte("data: "), message...), "\n\n"...)); err != nil || out.Flush() != nil {
			return
		}
		var ok bool
		select {
		case <-r.Context().Done():
			return
		case message, ok = <-mine:
			if !ok {
				return
			}
		}
	}
}

// show serves the page: all of it, or the part about one worker, image or decision.
func (c *livePage) show(w http.ResponseWriter, r *http.Request) {
	query, workers := r.URL.Query(), c.state.Workers()
	c.mu.Lock()
	v := c.view(time.Now(), workers, query)
	c.mu.Unlock()
	if id := query.Get("id"); id != "" {
		d, ok := c.state.Router.Decision(id)
		if !ok {
			http.Error(w, notKnown, http.StatusNotFound)
			return
		}
		v.Title, v.Decision = "decision "+id, newDecided(c.state.explained(d))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.Header().Set("Referrer-Policy", "no-referrer")
	_ = c.page.ExecuteTemplate(w, "page", v)
}

func asset(name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, files, name)
	}
}
