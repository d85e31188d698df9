package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const wantAdmin = "a Sightline's admin page, by default http://127.0.0.1:9903"

// TokenVariable is the environment variable with the admin_token of the Sightline that a command asks.
const TokenVariable = "SIGHTLINE_ADMIN_TOKEN"

// AdminRequest is a request to a running Sightline's admin page.
type AdminRequest struct {
	Method   string // "": GET
	Base     string // the page's address, such as http://127.0.0.1:9903
	Path     string // including the query
	Token    string // its admin_token; "": that in $SIGHTLINE_ADMIN_TOKEN, if any
	Body     []byte
	MaxBytes int64 // limit of the answer in bytes
}

// Ask returns the answer. It follows no redirect, because the token is only for this address. An answer other than 200, above the
// limit, or later than a minute is an error.
func Ask(ctx context.Context, q AdminRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !strings.Contains(q.Base, "://") {
		q.Base = "http://" + q.Base
	}
	ask := strings.TrimRight(q.Base, "/") + q.Path
	req, err := http.NewRequestWithContext(ctx, q.Method, ask, bytes.NewReader(q.Body))
	if err != nil {
		return nil, err
	}
	if token := cmp.Or(q.Token, os.Getenv(TokenVariable)); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		if of := (*url.Error)(nil); errors.As(err, &of) {
			err = of.Err // without the whole URL again
		}
		return nil, fmt.Errorf("nothing answers at %s: %w (want "+wantAdmin+")", q.Base, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, q.MaxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound && strings.TrimSpace(string(body)) != notKnown &&
		strings.TrimSpace(string(body)) != ErrNoWorker.Error():
		return nil, fmt.Errorf("%s answers 404 (want "+wantAdmin+")", ask)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %d: %s", ask, resp.StatusCode, strings.TrimSpace(string(body[:min(len(body), 300)])))
	case int64(len(body)) > q.MaxBytes:
		return nil, fmt.Errorf("%s answers with more than %d bytes", ask, q.MaxBytes)
	}
	return body, nil
}
