package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// Answer is the result of a request.
type Answer struct {
	First, End             time.Duration // from sending to the first piece and to the end
	Prompt, Cached, Output int           // tokens, as the engine counts them
	Text                   string
	Reason                 string // of the decision; "": unknown
}

// Ask sends a streaming chat request through do, such as http.Client's Do, and reads the answer to its end. A status other than 200
// is an error.
func Ask(ctx context.Context, do func(*http.Request) (*http.Response, error), url string, header http.Header,
	body []byte) (a Answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	a.Reason = resp.Header.Get("x-sightline-reason")
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	var text strings.Builder
	ended := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			ended = true
			continue
		}
		if a.First == 0 {
			a.First = time.Since(start)
		}
		text.WriteString(gjson.Get(data, "choices.0.delta.content").Str)
		if u := gjson.Get(data, "usage"); u.IsObject() {
			a.Prompt, a.Output = int(u.Get("prompt_tokens").Int()), int(u.Get("completion_tokens").Int())
			a.Cached = int(u.Get("prompt_tokens_details.cached_tokens").Int())
		}
		if e := gjson.Get(data, "error"); e.Exists() {
			return a, fmt.Errorf("an error within the answer: %.300s", e.Raw)
		}
	}
	a.End, a.Text = time.Since(start), text.String()
	if err := lines.Err(); err != nil {
		return a, err
	}
	if !ended {
		return a, errors.New("the answer broke off")
	}
	return a, nil
}

// served returns the first model that a server lists.
func served(ctx context.Context, client *http.Client, url string, header http.Header) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", errors.Unwrap(err) // without the URL again
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if name := gjson.GetBytes(text, "data.0.id").Str; name != "" {
		return name, nil
	}
	return "", fmt.Errorf("/v1/models names none, status %d", resp.StatusCode)
}
